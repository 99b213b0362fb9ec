"""The nodes of a job while they are recorded: the first one fetches the parts of the others where
they write on disks of their own, waits for them, and says what it could not see. If it is lost, the
lowest node that is left and has the parts of those before it speaks for the job: on disks of their
own the second one, which fetches parts, too."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from mgpu_probes.outside.jobs.rank_environment import VARIABLES

from mgpu_doctor.formatting import format_count
from mgpu_doctor.launch.job_nodes import JobNodes
from mgpu_doctor.launch.messages import print_message
from mgpu_doctor.launch.node_parts import (
    await_parts,
    find_lost_before,
    finish_job,
    list_unfinished,
)
from mgpu_doctor.launch.observe import Observed
from mgpu_doctor.recording.joint_recordings import (
    NOT_HERE,
    host_of,
    list_parts,
    name_host,
    name_part,
)
from mgpu_doctor.recording.layout import INFO
from mgpu_doctor.recording.live_recordings import read_object

SECONDS_TO_ANSWER = 5.0
"""For the process that fetches, at the end."""
_JOIN = (
    "If parts are missing in the recording of the first node, `mgpu-doctor diagnose RECORDING "
    "RECORDING…` joins those of all nodes."
)
GATHERER = "mgpu_doctor.cluster.part_gatherer"


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
        slurm = self._nodes.slurm, os.environ.get("SLURM_STEP_NODELIST")
        fetches = self._nodes.first or self._nodes.second
        if not fetches or len(list_parts(folder)) >= self._nodes.tasks:
            return
        if self._hosts is None and None in slurm:
            return
        request = {
            "folder": str(folder),
            "own": name_host(),
            "node": os.environ.get("SLURMD_NODENAME", name_host()),
            "joint": self._nodes.key,
            "slurm": slurm if self._hosts is None else None,
            "hosts": self._hosts,
        }
        with suppress(OSError):
            self._child = subprocess.Popen(
                [sys.executable, "-m", GATHERER, json.dumps(request)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=_leave_job(os.environ),
                cwd="/",
                start_new_session=True,  # the terminal's signals are for the job
            )

    def finish(self, observed: Observed, folder: Path, *, quiet: bool) -> bool:
        """Waits for the other nodes, and notes how the job ended on all of them; whether this
        process reports about it. Another than the first prints one line, and notes what it knows
        of the end if no other node writes into its folder."""
        lost = () if observed.leads else self._find_lost(observed, folder)
        if not lost and not observed.leads:
            self._follow(folder, quiet=quiet)
            return False
        if lost and not quiet:
            print_message(_name_lost([host_of(part) for part in lost]))
        unfinished = await_parts(
            folder,
            self._own,
            self._nodes.tasks,
            observed.seconds,
            hurry=observed.asked,
            lost=lost,
            still_gathers=lambda: self._child is not None and self._child.poll() is None,
        )
        unseen = self._stop() or self._name_missing(folder)
        finish_job(folder, unfinished, unseen)
        if unseen and not quiet:
            print_message(
                f"{', '.join(unseen)}: {'; '.join(unseen.values())}. Only what is in {folder} is "
                f"examined. {_JOIN}"
            )
        return True

    def _find_lost(self, observed: Observed, folder: Path) -> tuple[str, ...]:
        """The parts of all nodes before this one, if they were lost and this process speaks for the
        job. A job that ended well lost none."""
        number = self._nodes.number
        if not number or self._nodes.task or observed.exit_code == 0:
            return ()
        return find_lost_before(folder, self._own, number, observed.seconds)

    def _follow(self, folder: Path, *, quiet: bool) -> None:
        unseen = self._stop()
        if self._nodes.task:
            return
        alone = {host_of(part) for part in list_parts(folder)} == {name_host()}
        if (read_object(folder, INFO) or {}).get("host") == name_host():
            finish_job(folder, list_unfinished(folder), unseen or self._name_missing(folder))
        if not quiet:
            self._point_to(folder, alone=alone)

    def _name_missing(self, folder: Path) -> dict[str, str]:
        missing = self._nodes.least - len({host_of(part) for part in list_parts(folder)})
        if missing <= 0 or self._nodes.first is None:
            return {}
        return {format_count(missing, "other node"): NOT_HERE}

    def _stop(self) -> dict[str, str]:
        """Ends the process that fetches; why it saw nothing of some hosts."""
        child, self._child = self._child, None
        if child is None:
            return {}
        try:
            out, _ = child.communicate(timeout=SECONDS_TO_ANSWER)
            answer = json.loads(out)
        except (subprocess.TimeoutExpired, OSError, ValueError):
            child.kill()
            child.wait()
            return {"the other nodes": "fetching their parts failed"}
        return {str(name): str(reason) for name, reason in answer.items()}

    def _point_to(self, folder: Path, *, alone: bool) -> None:
        """Prints where the part of a node is whose job the first node reports about."""
        number = "" if self._nodes.number is None else f"{self._nodes.number + 1} "
        where = f"the first node prints the diagnosis; the recording is {folder}."
        if alone:
            where = f"its part of the recording is {folder}. {_JOIN}"
        print_message(f"node {number}of {self._nodes.count} has ended; {where}")


def _name_lost(hosts: Sequence[str]) -> str:
    if len(hosts) == 1:
        return f"host {hosts[0]}, the first node, was lost: this node reports."
    names = f"{', '.join(hosts[:-1])} and {hosts[-1]}"
    return f"hosts {names}, the first {len(hosts)} nodes, were lost: this node reports."


def _leave_job(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment without what makes a process a rank of the job: an agent that `srun` starts
    would be taken for one. Nor do its limits count for `srun`, such as its CPUs and tasks."""
    of_step = ("SLURM_", "SRUN_")
    return {
        name: value
        for name, value in environment.items()
        if name == "SLURM_CONF" or not (name in VARIABLES or name.startswith(of_step))
    }
