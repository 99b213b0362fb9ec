"""Fetches the parts of other nodes into the recording of the first node, while the job runs: a
process of its own, which `mgpu-doctor run` starts where nodes share no folder.

It ends when its standard input does, and then says on standard output which hosts it could not
see, and why: a JSON object. What a node had sent until it was lost stays.

A node that fetches nothing asks through it, at its end, on which of the nodes before it somebody
reports."""

from __future__ import annotations

import json
import os
import select
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict

from mgpu_doctor.case.model import AskedHost
from mgpu_doctor.cluster.agent_messages import JobFacts
from mgpu_doctor.cluster.engine import Engine, Trouble
from mgpu_doctor.cluster.gathered_job import GatheredJob
from mgpu_doctor.cluster.host_channel import HostState, Link
from mgpu_doctor.cluster.host_fleet import Fleet
from mgpu_doctor.cluster.host_mirror import HostRefused
from mgpu_doctor.cluster.run_question import SECONDS_TO_ANSWER, ask_hosts, make_question
from mgpu_doctor.errors import DoctorError
from mgpu_doctor.recording.joint_recordings import UNSEEN_HOST, Absence, host_of, list_parts
from mgpu_doctor.recording.layout import END, HOSTS, INFO
from mgpu_doctor.recording.write import write_whole

EVERY = 2.0
"""Seconds between two polls of a node: what is lost with it."""
POLL = 0.5
NICE = 19
SHARES = "it writes into the same folder"


class Request(TypedDict):
    """What to fetch. `own`: this host; `node`: what Slurm calls it; `joint`: the key of the
    recording. Either `slurm`, the job and its nodes as Slurm lists them, or `hosts`, as `--hosts`
    has them. `number`: of this node, if only the nodes before it are to be asked who reports;
    None: parts are to be fetched. `patience`: seconds without a sign of life after which a part
    counts as abandoned."""

    folder: str
    own: str
    node: str
    joint: str
    slurm: tuple[str, str] | None
    hosts: str | None
    number: int | None
    patience: float


class JointJob(GatheredJob):
    """The parts that other nodes send, in the recording of this one."""

    def __init__(self, folder: Path, own: str) -> None:
        self._own = own
        self._prepare(folder)

    def add_host(self, host: str) -> None:
        """Makes the part of a host. Raises HostRefused where there is one already: it is this host,
        or shares the folder."""
        if host in self._parts:
            return
        if host == self._own or (self.folder / HOSTS / host / INFO).exists():
            raise HostRefused(Trouble(SHARES, "nothing"))
        super().add_host(host)

    def note_hosts(self, asked: tuple[AskedHost, ...]) -> None:
        """What was not seen is returned at the end."""

    def _learn(self, host: str, name: str, body: bytes) -> None:
        write_whole(self.folder / HOSTS / host / name, body)

    def _settle(self) -> None:
        """The first node itself says how the job ended."""


def gather(request: Request, stop: int) -> dict[str, Absence]:
    """Fetches until the descriptor `stop` ends. Returns what was not seen, `host node7`, and
    why; nothing of hosts that share the folder."""
    try:
        named, engine = _find_hosts(request)
    except DoctorError as error:
        return {"the other nodes": Absence(str(error).rstrip("."))}
    hosts = [name for name in named if name not in (request["own"], request["node"])]
    job = JointJob(Path(request["folder"]), request["own"])

    def begin_job(_: JobFacts, host: str) -> GatheredJob:
        job.add_host(host)
        return job

    waiting = select.poll()
    waiting.register(stop, select.POLLIN)
    with Fleet(hosts, engine, EVERY, joint=request["joint"], begin_job=begin_job) as fleet:
        while not waiting.poll(0):
            fleet.poll(POLL)
        return {
            f"{UNSEEN_HOST}{state.name}": Absence(state.trouble.reason, state.trouble.silent)
            for state in fleet.states()
            if state.trouble is not None and _is_missing(job.folder, state)
        }


def ask_before(request: Request, number: int) -> dict[str, Absence | None]:
    """Of each node before this one, in order: why nobody there reports; None: somebody does.
    Nothing if it is unknown which nodes these are. `number`: of this node."""
    try:
        hosts, engine = _find_hosts(request)
    except DoctorError:
        return {}
    if hosts[number : number + 1] not in ((request["own"],), (request["node"],)):
        return {}  # they are in another order than the numbers
    patience = request["patience"]
    question = make_question(Path(request["folder"]), request["joint"], patience)
    answers = ask_hosts(engine, hosts[:number], question, SECONDS_TO_ANSWER + patience)
    return {host: why and Absence(why.reason, why.silent) for host, why in answers.items()}


def _is_missing(folder: Path, state: HostState) -> bool:
    """Whether something that a host recorded may not be here."""
    shares = state.trouble is not None and state.trouble.reason == SHARES
    host = state.node or state.name
    parts = [part for part in list_parts(folder) if host_of(part) == host]
    has_all = parts and all((folder / HOSTS / part / END).exists() for part in parts)
    return state.link is not Link.LIVE and not shares and not has_all


def _find_hosts(request: Request) -> tuple[tuple[str, ...], Engine]:
    """The hosts of the job, and how to reach them. Raises DoctorError."""
    if request["slurm"] is not None:
        from mgpu_doctor.cluster.slurm_nodes import Slurm, expand_nodes

        job, nodes = request["slurm"]
        return expand_nodes(nodes, job), Slurm(job)
    from mgpu_doctor.cluster.openssh import parse_hosts

    return parse_hosts(request["hosts"] or "")


def main(arguments: Sequence[str]) -> None:
    """Serves one request, a JSON object."""
    os.nice(NICE)
    request: Request = json.loads(arguments[0])
    number = request["number"]
    answer = gather(request, sys.stdin.fileno()) if number is None else ask_before(request, number)
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
