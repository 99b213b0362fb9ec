"""`run --notify COMMAND`: starts COMMAND with JSON on its standard input for each finding at
warning or worse, for a stall, and for the end of the job.

The job never waits for COMMAND. Each call has a time limit, few wait in a queue, and failures are
counted, not raised. A running job is diagnosed in a thread of the lowest priority, for at most 1 %
of the time.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from mgpu_doctor.case.model import Outcome
from mgpu_doctor.findings import Diagnosis, Severity
from mgpu_doctor.report.diagnosis_json import document

SCHEMA = "mgpu-doctor/notice/1"
SECONDS = 10.0
"""How long COMMAND may run; then it is killed, with its children."""
MOST_WAITING = 16
"""Notices that wait for an earlier one; more are dropped, except that of the end."""
EVERY = 60.0
"""Seconds between two diagnoses of a running job, at least."""
MOST_SHARE = 0.01
"""Share of one core that diagnosing a running job may take."""


class Event(str, Enum):
    """What a notice is about."""

    FINDING = "finding"
    STALL = "stall"
    END = "end"


@dataclass(frozen=True, slots=True)
class Stall:
    """The job has made no progress for `seconds`."""

    seconds: float


class JobNotices:
    """The notices of one job. `diagnose`: the diagnosis of a recording; None if it failed."""

    def __init__(
        self,
        command: str,
        diagnose: Callable[[Path], Diagnosis | None],
        *,
        every: float = EVERY,
        patience: float = SECONDS,
    ) -> None:
        self._command, self._diagnose = command, diagnose
        self._every, self._patience = every, patience
        self._queue: queue.Queue[str | None] = queue.Queue(MOST_WAITING)
        self._over = threading.Event()
        self._running: subprocess.Popen[str] | None = None
        self._given_up = False
        self._sent: set[tuple[object, ...]] = set()
        self._recording: Path | None = None
        self.failures = 0
        """Calls of COMMAND that failed, took too long, or were dropped."""
        # A thread that starts before the job would take the signals that `observe` waits for.
        self._sender = threading.Thread(target=self._send_all, name="notices", daemon=True)

    def watch(self, recording: Path) -> None:
        """Starts to diagnose the running job now and then. Call it when `observe` has blocked its
        signals."""
        self._recording = recording
        self._sender.start()
        threading.Thread(target=self._watch, name="notice-findings", daemon=True).start()

    def report_stall(self, seconds: float) -> None:
        """Sends a stall, with the diagnosis of the job as it is now."""
        if self._recording is not None:
            self._put(self._describe(Event.STALL, self._diagnose(self._recording), Stall(seconds)))

    def report_end(self, exit_code: int, diagnosis: Diagnosis | None) -> None:
        """Sends the end, and waits until it was delivered or two calls had their time."""
        self._over.set()
        if self._sender.ident is None:
            self._sender.start()
        ended = self._describe(Event.END, diagnosis)
        ended["exit_code"] = exit_code
        with suppress(queue.Empty):
            while self._queue.qsize() >= MOST_WAITING - 2:
                self._queue.get_nowait()
                self.failures += 1
        self._put(ended)
        with suppress(queue.Full):
            self._queue.put(None, timeout=self._patience)
        self._sender.join(2 * self._patience + 1)
        self._given_up = True  # what still waits is not sent, and no call is left behind
        if self._running is not None:
            _kill(self._running)
        with suppress(queue.Full):
            self._queue.put_nowait(None)
        self._sender.join(self._patience)

    def _watch(self) -> None:
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)  # of this thread
        pause = self._every
        while not self._over.wait(pause):
            started = time.thread_time()
            assert self._recording is not None
            diagnosis = self._diagnose(self._recording)
            if diagnosis is not None and diagnosis.case.job.outcome is Outcome.RUNNING:
                self._report_findings(diagnosis)
            pause = max(self._every, (time.thread_time() - started) / MOST_SHARE)

    def _report_findings(self, diagnosis: Diagnosis) -> None:
        """Sends the findings that were not sent before."""
        new = {key for key in _keys(diagnosis) if key not in self._sent}
        if new and not self._over.is_set():
            self._sent |= new
            self._put(self._describe(Event.FINDING, diagnosis))

    def _describe(
        self, event: Event, diagnosis: Diagnosis | None, stall: Stall | None = None
    ) -> dict[str, Any]:
        report = {} if diagnosis is None else document(diagnosis)
        findings = report.get("findings", [])
        return {
            "schema": SCHEMA,
            "event": event.value,
            "at": time.time(),
            "host": os.uname().nodename,
            "recording": None if self._recording is None else os.fspath(self._recording),
            "job": report.get("job"),
            "findings": [each for each in findings if each["severity"] != Severity.INFO.value],
            "stalled_seconds": None if stall is None else stall.seconds,
            "exit_code": None,
        }

    def _put(self, notice: dict[str, Any]) -> None:
        try:
            self._queue.put_nowait(json.dumps(notice) + "\n")
        except queue.Full:
            self.failures += 1

    def _send_all(self) -> None:
        while not self._given_up and (notice := self._queue.get()) is not None:
            if not self._send(notice):
                self.failures += 1

    def _send(self, notice: str) -> bool:
        """Whether COMMAND succeeded in time."""
        try:
            process = self._running = subprocess.Popen(
                ["/bin/sh", "-c", self._command],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # away from the terminal's signals
                text=True,
            )
        except OSError:
            return False
        try:
            process.communicate(notice, timeout=0 if self._given_up else self._patience)
        except (subprocess.TimeoutExpired, OSError):
            _kill(process)
            process.wait()
            return False
        return process.returncode == 0


def _kill(process: subprocess.Popen[str]) -> None:
    """Kills the process and its children, unless it has ended."""
    if process.poll() is None:
        with suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)


def _keys(diagnosis: Diagnosis) -> Iterator[tuple[object, ...]]:
    for finding in diagnosis.findings:
        if finding.severity is not Severity.INFO:
            yield (finding.code, *sorted(str(culprit.rank) for culprit in finding.culprits))
