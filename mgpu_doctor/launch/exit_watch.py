"""Records how the job's processes exited, from a process that is not their parent; and
`ending.json`.

A thread of its own writes the file: an unresponsive file system must not delay the rest.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from mgpu_probes.outside import processes
from mgpu_probes.outside.exit_evidence import ExitEvidence

from mgpu_doctor.launch.run_recording import RunRecording
from mgpu_doctor.recording.write import write_json

# struct pidfd_info of linux/pidfd.h: mask, cgroup id, pid, tgid, ppid, 8 user and group ids,
# exit code. PIDFD_INFO_EXIT (Linux 6.15): the exit code, once the parent has asked for it.
_PIDFD_INFO = struct.Struct("=QQ11Ii")
_PIDFD_GET_INFO = 0xC040FF0B  # _IOWR(0xFF, 11, 64 bytes)
_PIDFD_INFO_EXIT = 1 << 3


def zombie_wait_status(pid: int, start_ticks: int, proc: Path = Path("/proc")) -> int | None:
    """Returns the wait status of an ended process that its parent has not waited for; else None."""
    return processes.read_wait_status(pid, start_ticks, proc)


def pidfd_wait_status(pidfd: int) -> int | None:
    """Returns the wait status of a process that was waited for; None if the kernel does not report
    it."""
    request = _PIDFD_INFO.pack(_PIDFD_INFO_EXIT, *([0] * 13))
    try:
        answer = _PIDFD_INFO.unpack(fcntl.ioctl(pidfd, _PIDFD_GET_INFO, request))
    except OSError:
        return None
    return int(answer[-1]) if answer[0] & _PIDFD_INFO_EXIT else None


def split_wait_status(status: int | None) -> dict[str, int | None]:
    """Returns `exit_code` and `signal` of a wait status, as in a recording."""
    if status is None:
        return {"exit_code": None, "signal": None}
    code = os.waitstatus_to_exitcode(status)
    return (
        {"exit_code": code, "signal": None} if code >= 0 else {"exit_code": None, "signal": -code}
    )


CLOSE_LOOKS = 30
"""The first polls cover each process; after this many, only every tenth poll does."""
THEN_EACH = 10
SAVED_EVERY = 30.0
LEAST_GAP, LEAST_BETWEEN_SAVES = 0.2, 1.0
"""Minimum seconds between polls, however fast processes come and go."""


class ExitWatch:
    """Watches exits. `pids`: the job's current processes. `interval`: seconds until the next poll,
    given the seconds since the start."""

    def __init__(
        self,
        recording: RunRecording,
        path: Path,
        pids: Callable[[], list[int]],
        interval: Callable[[float], float],
    ) -> None:
        self._recording = recording
        self._path = path
        self._pids = pids
        self._interval = interval
        self._hurry = threading.Event()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="endings", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def someone_ended(self) -> None:
        """Polls at once, before the evidence is gone."""
        self._hurry.set()

    def finish(self, patience: float) -> None:
        """Polls a last time when the job is over. Waits at most this many seconds."""
        self._over.set()
        self._hurry.set()
        self._thread.join(patience)

    def _run(self) -> None:
        endings = ExitEvidence(_folders())
        started = time.monotonic()
        saved = closely_at = save_at = started
        close_looks, last = 0, False
        while not last:
            last = self._over.is_set()
            now = time.monotonic()
            wait = self._interval(now - started)
            if self._hurry.is_set():
                self._hurry.clear()
                save_at = min(save_at, saved + LEAST_BETWEEN_SAVES)
            endings.poll(self._pids(), closely=now >= closely_at and not last)
            if now >= closely_at:
                close_looks += 1
                closely_at = now + wait * (1 if close_looks < CLOSE_LOOKS else THEN_EACH)
            if now >= save_at or last:
                saved, save_at = now, now + SAVED_EVERY
                self._recording.guarded(lambda: write_json(self._path, endings.evidence()))
            if not last and not self._over.wait(LEAST_GAP):
                self._hurry.wait(max(0.0, min(wait, save_at - time.monotonic())))
        endings.close()


def _folders() -> dict[str, str]:
    folders = {"tmp": tempfile.gettempdir()}
    with contextlib.suppress(OSError):  # it was removed
        folders["cwd"] = os.getcwd()
    return folders
