"""This machine's current facts about a recorded job: the only module here that queries it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mgpu_probes.outside import processes

from mgpu_doctor.case import untrusted_json
from mgpu_doctor.case.model import JobEnd
from mgpu_doctor.case.untrusted_json import Json
from mgpu_doctor.recording.box import Box


def this_host() -> str:
    """The name by which boxes and recordings call this machine."""
    return os.uname().nodename


@dataclass(frozen=True, slots=True)
class Here:
    """This machine in this boot: only its own pids can be looked up. `owner`: the user whose
    recording it is; None: unknown."""

    host: str
    boot_id: str | None
    owner: int | None = None

    def was(self, box: Box) -> bool:
        """Whether the box's process ran here, so that its pid is valid here."""
        same_boot = self.boot_id is not None and box.identity.boot_id == self.boot_id
        return box.identity.host == self.host and same_boot and bool(box.identity.start_ticks)

    def booted_since(self, box: Box) -> bool:
        """Whether the machine rebooted after the box was created."""
        known = None not in (box.identity.boot_id, self.boot_id)
        return known and box.identity.host == self.host and box.identity.boot_id != self.boot_id

    def has_process(self, box: Box) -> bool:
        """Whether the box's process, which ran here, is alive."""
        return processes.is_alive(box.identity.pid, box.identity.start_ticks)

    def is_of_its_owner(self, pid: int) -> bool:
        """Whether the process is of the user whose recording names it."""
        return self.owner is not None and processes.find_uid(pid) == self.owner


def here(recording: Path) -> Here:
    """This machine, for a recording in this folder."""
    return Here(this_host(), processes.boot_id(), _owner(recording))


def _owner(path: Path) -> int | None:
    try:
        return path.stat().st_uid
    except OSError:
        return None


def launcher_alive(info: Mapping[str, Json], end: JobEnd, until: float | None) -> bool | None:
    """Whether the job's first process runs; None if unknown on this machine."""
    if end.over:
        return False
    if until is not None:
        return True
    pid = untrusted_json.whole(info.get("job_pid"), 1)
    if pid is None or untrusted_json.text(info.get("host"), 64) != this_host():
        return None
    return processes.is_alive(pid, untrusted_json.whole(info.get("job_start_ticks"), 1))
