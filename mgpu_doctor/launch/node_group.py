"""The nodes of a job while they are recorded: the first one fetches the parts of the others where
they write on disks of their own, waits for them, and says what it could not see."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from mgpu_doctor.formatting import format_count
from mgpu_doctor.launch.job_nodes import JobNodes
from mgpu_doctor.launch.messages import print_message
from mgpu_doctor.launch.node_parts import await_parts, finish_job
from mgpu_doctor.launch.observe import Observed
from mgpu_doctor.recording.joint_recordings import find_parts, name_host

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
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def follows(self) -> bool:
        """Whether another node speaks for the job, as far as that is known before it starts."""
        return bool(self._nodes.number)

    def begin(self, folder: Path) -> None:
        """Fetches the parts of nodes that do not write into this folder, if there is a way to."""
        here = len(list(find_parts(folder)))
        slurm = self._nodes.slurm, os.environ.get("SLURM_STEP_NODELIST")
        if self._nodes.number != 0 or here >= self._nodes.count:
            return
        if self._hosts is None and None in slurm:
            return
        request = {
            "folder": str(folder),
            "own": name_host(),
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
                cwd="/",
                start_new_session=True,  # the terminal's signals are for the job
            )

    def finish(self, observed: Observed, folder: Path, *, quiet: bool) -> None:
        """Waits for the other nodes, and notes how the job ended on all of them. Another node than
        the first prints one line, and notes how the job ended on it if it has the folder alone."""
        if not observed.leads:
            alone = len(list(find_parts(folder))) == 1
            if alone:
                finish_job(folder, {}, self._name_missing(folder))
            if not quiet:
                self._point_to(folder, alone=alone)
            return
        unfinished = await_parts(
            folder,
            name_host(),
            self._nodes.count,
            observed.seconds,
            hurry=observed.asked,
            still_gathers=lambda: self._child is not None and self._child.poll() is None,
        )
        unseen = self._stop() or self._name_missing(folder)
        finish_job(folder, unfinished, unseen)
        if unseen and not quiet:
            print_message(
                f"{', '.join(unseen)}: {'; '.join(unseen.values())}. Only what is in {folder} is "
                f"examined. {_JOIN}"
            )

    def _name_missing(self, folder: Path) -> dict[str, str]:
        missing = self._nodes.count - len(list(find_parts(folder)))
        if missing <= 0 or self._nodes.number is None:
            return {}
        return {format_count(missing, "other node"): "nothing that was recorded there is here"}

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
        number = "" if self._nodes.number is None else f"{self._nodes.number + 1} of "
        where = f"the first node prints the diagnosis; the recording is {folder}."
        if alone:
            where = f"its part of the recording is {folder}. {_JOIN}"
        print_message(f"node {number}{self._nodes.count} has ended; {where}")
