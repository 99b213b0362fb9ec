"""The nodes of a job while they are recorded: the first one fetches the parts of the others where
they write on disks of their own, waits for them, and says what it could not see. If it is lost, the
lowest node that is left speaks for the job: on disks of their own the second one, which fetches
parts, too, or else a node that has its own part alone, and before which no node reports."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

from mgpu_probes.outside.jobs.rank_environment import VARIABLES

from mgpu_doctor.formatting import format_count
from mgpu_doctor.launch.job_nodes import JobNodes, is_this_machine
from mgpu_doctor.launch.messages import print_message
from mgpu_doctor.launch.node_parts import (
    are_lost,
    await_parts,
    find_patience,
    finish_job,
    list_before,
    list_unfinished,
)
from mgpu_doctor.launch.observe import Observed
from mgpu_doctor.recording.joint_recordings import (
    NOT_HERE,
    UNSEEN_HOST,
    Absence,
    host_of,
    list_parts,
    name_host,
    name_part,
)
from mgpu_doctor.recording.layout import INFO
from mgpu_doctor.recording.live_recordings import read_object

SECONDS_TO_ANSWER = 5.0
"""For the process that fetches, at the end."""
SECONDS_TO_ASK = 30.0
"""For the process that asks the nodes before this one, besides the patience that they need to find
that their `run` was killed; it takes 12 s and its start."""
MOST_ASKING = 8
"""Nodes after the first one that ask those before them, at the end of a job that failed, who
reports. A choice: with more of them, a host would get more connections at once than its ssh
server takes (MaxStartups in sshd_config(5))."""
GATHERER = "mgpu_doctor.cluster.part_gatherer"


class _Answers(NamedTuple):
    """Who reports on the nodes before this one. `silent`: those before the first one that does, and
    why they do not; `speaker`: this one; None: none does."""

    silent: Mapping[str, Absence]
    speaker: str | None


_NOBODY_ASKED = _Answers({}, None)


class NodeGroup:
    """`nodes`: those of the job. `hosts`: names by which `ssh` reaches them, with commas; None: the
    user named none."""

    def __init__(self, nodes: JobNodes, hosts: str | None) -> None:
        self._nodes = nodes
        self._hosts = hosts
        self._own = name_part(name_host(), nodes.task)
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def follows(self) -> bool:
        """Whether another process speaks for the job, as far as that is known before it starts."""
        return self._nodes.first is False

    @property
    def reports_hangs(self) -> bool:
        """Whether this process prints a hang that it notices: another task of the first node takes
        over from the first task."""
        return not self.follows or self._nodes.number == 0

    def begin(self, folder: Path) -> None:
        """Fetches the parts of nodes that do not write into this folder, if there is a way to."""
        fetches = self._nodes.first or self._nodes.second
        if fetches and len(list_parts(folder)) < self._nodes.tasks:
            self._child = self._start(folder)

    def _start(
        self, folder: Path, number: int | None = None, patience: float = 0.0
    ) -> subprocess.Popen[bytes] | None:
        """The process that fetches; None if there is no way to reach other nodes. `number`,
        `patience`: as `Request` has them."""
        slurm = self._nodes.slurm, os.environ.get("SLURM_STEP_NODELIST")
        if self._hosts is None and None in slurm:
            return None
        request = {
            "folder": str(folder),
            "own": self._name_own(number),
            "node": os.environ.get("SLURMD_NODENAME", name_host()),
            "joint": self._nodes.key,
            "slurm": slurm if self._hosts is None else None,
            "hosts": self._hosts,
            "number": number,
            "patience": patience,
        }
        with suppress(OSError):
            return subprocess.Popen(
                [sys.executable, "-m", GATHERER, json.dumps(request)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=_leave_job(os.environ),
                cwd="/",
                start_new_session=True,  # the terminal's signals are for the job
            )
        return None

    def _name_own(self, number: int | None) -> str:
        """This host, as the user names it where its number says."""
        named = (self._hosts or "").split(",")[number : number + 1] if number is not None else []
        name = "".join(named).strip()
        return name if name and is_this_machine(name.rpartition("@")[2]) else name_host()

    def finish(self, observed: Observed, folder: Path, *, quiet: bool) -> bool:
        """Waits for the other nodes, and notes how the job ended on all of them; whether this
        process reports about it. Another than the first prints one line, and notes what it knows
        of the end if no other node writes into its folder."""
        lost: tuple[str, ...] = ()
        answers = _NOBODY_ASKED
        if not observed.leads:
            lost, answers = self._find_lost(observed, folder)
            if not lost and (answers.speaker is not None or not answers.silent):
                self._follow(folder, answers, quiet=quiet)
                return False
        if lost and not quiet:
            were = "was" if len(lost) == 1 else "were"
            print_message(
                f"{_name_first(list(map(host_of, lost)))}, {were} lost: this node reports."
            )
        elif answers.silent and not quiet:
            print_message(f"{_explain_silence(answers)}: this node reports.")
        unfinished = await_parts(
            folder,
            self._own,
            self._nodes.tasks,
            observed.seconds,
            hurry=observed.asked,
            lost=lost,
            still_gathers=lambda: self._child is not None and self._child.poll() is None,
        )
        unseen = self._list_unseen(folder, answers)
        finish_job(folder, unfinished, unseen)
        if unseen and not quiet:
            reasons = "; ".join(f"{name}: {absence.why}" for name, absence in unseen.items())
            examined = f"Only what is in {folder} is examined"
            print_message(
                f"{reasons}. {examined}. To examine all of it, {_explain_joining(folder)}."
            )
        return True

    def _find_lost(self, observed: Observed, folder: Path) -> tuple[tuple[str, ...], _Answers]:
        """The parts of all nodes before this one, if they were lost and this process speaks for the
        job; else, if not all of them have a part here, on which of them nobody reports. A job that
        ended well lost none."""
        number = self._nodes.number
        if not number or self._nodes.task or observed.exit_code == 0:
            return (), _NOBODY_ASKED
        before = list_before(folder, number)
        if len(before) == number:
            lost = are_lost(folder, self._own, before, observed.seconds)
            return before if lost else (), _NOBODY_ASKED
        if number > MOST_ASKING or observed.asked:
            return (), _NOBODY_ASKED
        return (), self._ask_before(folder, number, find_patience(observed.seconds))

    def _ask_before(self, folder: Path, number: int, patience: float) -> _Answers:
        child = self._start(folder, number, patience)
        asked = {} if child is None else _read_answer(child, SECONDS_TO_ASK + patience) or {}
        silent = {name: why for name, why in takewhile(lambda pair: pair[1], asked.items()) if why}
        return _Answers(silent, next((name for name, why in asked.items() if why is None), None))

    def _follow(self, folder: Path, answers: _Answers, *, quiet: bool) -> None:
        unseen = self._list_unseen(folder, answers)
        if self._nodes.task:
            return
        alone = {host_of(part) for part in list_parts(folder)} == {name_host()}
        if (read_object(folder, INFO) or {}).get("host") == name_host():
            finish_job(folder, list_unfinished(folder), unseen)
        if not quiet:
            self._point_to(folder, answers, alone=alone)

    def _list_unseen(self, folder: Path, answers: _Answers) -> dict[str, Absence]:
        """What is not here, and why. Ends the process that fetches."""
        named = {f"{UNSEEN_HOST}{name}": absence for name, absence in answers.silent.items()}
        if answers.speaker is not None:
            named[f"{UNSEEN_HOST}{answers.speaker}"] = Absence(NOT_HERE)
        return named | (self._stop() or self._name_missing(folder, len(named)))

    def _name_missing(self, folder: Path, named: int = 0) -> dict[str, Absence]:
        """How many nodes have no part here. `named`: without so many, which have names."""
        here = len({host_of(part) for part in list_parts(folder)})
        missing = self._nodes.least - here - named
        if missing <= 0 or self._nodes.first is None:
            return {}
        return {format_count(missing, "other node"): Absence(NOT_HERE)}

    def _stop(self) -> dict[str, Absence]:
        """Ends the process that fetches; why it saw nothing of some hosts."""
        child, self._child = self._child, None
        if child is None:
            return {}
        answer = _read_answer(child, SECONDS_TO_ANSWER)
        if answer is None:
            return {"the other nodes": Absence("fetching their parts failed")}
        return {name: absence for name, absence in answer.items() if absence is not None}

    def _point_to(self, folder: Path, answers: _Answers, *, alone: bool) -> None:
        """Prints where the part of a node is whose job another node reports about."""
        number = "" if self._nodes.number is None else f"{self._nodes.number + 1} "
        speaker = "the first node"
        if answers.silent:
            speaker = f"{_explain_silence(answers)}: {answers.speaker}"
        where = f"{speaker} prints the diagnosis; the recording is {folder}."
        if alone:
            where = f"{where} If it does not, {_explain_joining(folder)}."
        print_message(f"node {number}of {self._nodes.count} has ended; {where}")


def _read_answer(
    child: subprocess.Popen[bytes], seconds: float
) -> dict[str, Absence | None] | None:
    """What the process that fetches says at its end, which this asks for; None: nothing."""
    try:
        out, _ = child.communicate(timeout=seconds)
        answer = json.loads(out)
    except (subprocess.TimeoutExpired, OSError, ValueError):
        child.kill()
        child.wait()
        return None
    return {
        name: None if absence is None else Absence(*absence) for name, absence in answer.items()
    }


def _explain_silence(answers: _Answers) -> str:
    """That nobody reports on the first nodes, whether they are gone or their mgpu-doctor is."""
    return f"no mgpu-doctor answers on {_name_first(list(answers.silent))}"


def _name_first(hosts: Sequence[str]) -> str:
    """`hosts a and b, the first 2 nodes`."""
    if len(hosts) == 1:
        return f"host {hosts[0]}, the first node"
    return f"hosts {', '.join(hosts[:-1])} and {hosts[-1]}, the first {len(hosts)} nodes"


def _explain_joining(folder: Path) -> str:
    command = f"mgpu-doctor diagnose {shlex.quote(str(folder))} RECORDING…"
    return f"copy the recordings of the other nodes here and run `{command}`"


def _leave_job(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment without what makes a process a rank of the job: an agent that `srun` starts
    would be taken for one. Nor do its limits count for `srun`, such as its CPUs and tasks."""
    of_step = ("SLURM_", "SRUN_")
    return {
        name: value
        for name, value in environment.items()
        if name == "SLURM_CONF" or not (name in VARIABLES or name.startswith(of_step))
    }
