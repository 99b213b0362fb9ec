"""Which node of a job this is, if the job is started once per node or per rank, as by `srun`,
torchrun or accelerate.

Only what the environment and the command line say: Slurm's variables of a step, or the options of
torchrun and accelerate (with torchrun's `PET_` variables). Nothing is asked over the network, but
the name at which nodes meet may be looked up, as the launcher does a moment later."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from mgpu_probes.outside.jobs.launchers import find_launcher

from mgpu_doctor.recording.home import job_name

LONGEST_KEY = 300
LOOK_UP = 1.0
"""Seconds that the start of a job waits for the address of a name, at most."""
_COUNT = ("nnodes", "num_machines")
_NUMBER = ("node_rank", "machine_rank")
_PLACE = ("rdzv_endpoint", "master_addr", "main_process_ip")
_PORT = ("master_port", "main_process_port")
_RUN = ("rdzv_id",)
_BACKEND = ("rdzv_backend",)
_STATIC, _C10D = ("", "static"), "c10d"
_HERE = ("localhost", "127.0.0.1", "::1", "0.0.0.0")


@dataclass(frozen=True, slots=True)
class JobNodes:
    """The nodes of a job. `key`: equal on all of them, and for no other job that runs at the same
    time. `count`: how many there are, at most; `least`: at least. `first`: whether this
    `mgpu-doctor run` speaks for the whole job; None: unknown. `number`: of this node, from 0; None:
    unknown. `slurm`: the Slurm job whose step this is; None: it is no step of Slurm. `task`: number
    of this process among those of the step on this node, from 0; `tasks`: how many the step has on
    all nodes together."""

    key: str
    count: int
    least: int
    first: bool | None
    number: int | None
    slurm: str | None = None
    task: int = 0
    tasks: int = 1

    @property
    def second(self) -> bool:
        """Whether this process fetches the parts of the others, too, to speak for the job if the
        first node is lost."""
        return self.number == 1 and self.task == 0


def find_job_nodes(environment: Mapping[str, str], command: Sequence[str]) -> JobNodes | None:
    """The nodes of the job that `command` is a part of; None if it is all of it, or if that is
    unknown. Tasks of a step may just as well be jobs of their own, such as runs with different
    seeds: they are one job if torchrun or accelerate is started for several nodes, or else if there
    is an address at which ranks meet."""
    launcher = find_launcher(command)
    given = _read_options(command)
    if launcher == "torchrun":
        given = _read_variables(environment) | given
    fewest, _, most = (_whole(part) for part in _first(given, _COUNT).rpartition(":"))
    most = most or 1
    launched = launcher in ("torchrun", "accelerate")
    if launched and most < 2:
        return None
    place = _first(given, _PLACE) or ("" if launched else environment.get("MASTER_ADDR", ""))
    host = place.partition(":")[0]
    if "SLURM_STEP_ID" in environment and "SLURM_PROCID" in environment:
        step = _find_step(environment, job_name(command))
        meets = host and (host not in _HERE or (step is not None and step.count == 1))
        return step if launched or meets else None
    if not launched or not host or host in _HERE:
        return None
    key = f"{launcher} {place} {_first(given, _PORT)} {_first(given, _RUN)}"[:LONGEST_KEY]
    backend = _first(given, _BACKEND)
    if backend in _STATIC:
        number = _whole(_first(given, _NUMBER))
        first = None if number is None else number == 0
        return JobNodes(key, most, most, first, number, tasks=most)
    # torch numbers the nodes by itself. With c10d one of them serves the others: the first one.
    first = is_this_machine(host) if backend == _C10D else None
    return JobNodes(key, most, fewest or most, first, 0 if first else None, tasks=most)


def _find_step(environment: Mapping[str, str], name: str) -> JobNodes | None:
    """`name`: of the script, because a step may run several at the same time."""
    names = ("STEP_NUM_NODES", "STEP_NUM_TASKS", "PROCID", "NODEID", "LOCALID")
    nodes, tasks, rank, number, task = (_whole(environment.get(f"SLURM_{name}")) for name in names)
    if rank is not None and nodes == tasks:
        number, task = rank, 0
    job, step = environment.get("SLURM_JOB_ID"), environment["SLURM_STEP_ID"]
    if not job or not nodes or tasks is None or tasks < 2 or number is None or task is None:
        return None
    cluster = environment.get("SLURM_CLUSTER_NAME", "")
    requeue = environment.get("SLURM_RESTART_COUNT", "0")
    key = f"slurm {cluster} {job}.{step} {requeue} {name}"[:LONGEST_KEY]
    return JobNodes(key, nodes, nodes, number == task == 0, number, job, task, tasks)


def is_this_machine(name: str) -> bool | None:
    """Whether a host name or an address is one of this machine; None: the name is unknown, or was
    not found in time."""
    own = os.uname().nodename
    if name in (own, own.partition(".")[0]):
        return True
    found: list[str] = []

    def look_up() -> None:
        with suppress(OSError, UnicodeError):
            found.extend(str(entry[4][0]) for entry in socket.getaddrinfo(name, None))

    thread = threading.Thread(target=look_up, daemon=True)
    thread.start()
    thread.join(LOOK_UP)
    if not found:
        return None
    import psutil

    cards = psutil.net_if_addrs().values()
    mine = {address.address for card in cards for address in card}
    return any(address in mine or address.startswith("127.") for address in found)


def _read_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """torchrun's options that the environment gives."""
    return {
        name.removeprefix("PET_").lower(): value
        for name, value in environment.items()
        if name.startswith("PET_")
    }


def _read_options(command: Sequence[str]) -> dict[str, str]:
    """The launcher's options that matter here, up to the name of a script in Python: the rest is
    the script's. Of several of one name, the first."""
    known = {*_COUNT, *_NUMBER, *_PLACE, *_PORT, *_RUN, *_BACKEND}
    options: dict[str, str] = {}
    for place, word in enumerate(command):
        if word.endswith(".py"):
            break
        name, given, value = word.lstrip("-").partition("=")
        name = name.replace("-", "_")
        if word.startswith("--") and name in known:
            following = command[place + 1] if place + 1 < len(command) else ""
            options.setdefault(name, value if given else following)
    return options


def _first(given: Mapping[str, str], names: Sequence[str]) -> str:
    return next((given[name] for name in names if name in given), "")


def _whole(value: str | None) -> int | None:
    return int(value) if value and value.isascii() and value.isdecimal() else None
