"""Runs commands under observation: starts them, forwards signals, writes the recording.

Numpy must not be loaded before signals are blocked here (see `hang_evidence`).
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, MappingProxyType, TracebackType
from typing import Any

from mgpu_probes.outside import processes

from mgpu_doctor import __version__
from mgpu_doctor.launch import job_command
from mgpu_doctor.launch.exit_watch import split_wait_status
from mgpu_doctor.launch.hang_watchdog import Alarm
from mgpu_doctor.launch.job_command import job_environment
from mgpu_doctor.launch.job_console import Console, connect, stand_in_for_closed
from mgpu_doctor.launch.job_nodes import JobNodes
from mgpu_doctor.launch.messages import print_message
from mgpu_doctor.launch.process_watch import Watch
from mgpu_doctor.launch.run_recording import RunRecording
from mgpu_doctor.launch.signal_forwarding import ASKING, Inbox, SignalForwarder, SignalGroupProbe
from mgpu_doctor.recording import home, layout
from mgpu_doctor.recording.home import remembered
from mgpu_doctor.recording.run_series import describe_series
from mgpu_doctor.recording.write import OccupiedError

__all__ = ["Observed", "OccupiedError", "observe"]

SETTLED = 5.0
"""Seconds after which work in the background no longer disturbs a job's start."""


@dataclass(frozen=True, slots=True)
class Observed:
    """The result of a run. `recording`: None if it could not be written."""

    recording: Path | None
    exit_code: int
    """The job's exit code, or 128 + the signal that ended it."""
    seconds: float = 0.0
    """From the job's start to its end."""
    leads: bool = True
    """Whether this node reports about the whole job."""
    asked: bool = False
    """Whether a signal asked the job to end."""


def observe(
    command: Sequence[str],
    *,
    directory: Path | None,
    kind: str,
    name: str | None = None,
    capture: bool = True,
    meanwhile: Callable[[Path | None], None] | None = None,
    environment: Mapping[str, str] | None = None,
    alarm: Callable[[Path], Alarm] | None = None,
    starter: Sequence[str] = (),
    facts: Mapping[str, object] = MappingProxyType({}),
    nodes: JobNodes | None = None,
) -> Observed:
    """Runs `command` as it would run alone, records it, and waits for its end.

    `directory`: the recording itself; None: a new one in the doctor's home. `kind`: "run" or
    "train". `name`: the program's name in the recording's id. `capture`: whether to copy its
    output.
    `meanwhile`: called once, in a thread of lowest priority, when the job has run for some seconds,
    with the recording.
    `environment`: the job's, without our additions. `alarm`: given the recording and the pid of the
    job's first process, returns the callbacks for a hang, which run in a thread of their own.
    `starter`: a program and its arguments that become `command`; the recording does not name them.
    `facts`: further entries of `recording.json`.
    `nodes`: those on which the job runs, which write into one recording where they can.
    Call this from the main thread.

    Raises `OccupiedError` if `directory` must not be written to, and
    `job_command.CannotStartError`. Any other failure of the recording is reported on standard error
    and loses the recording, never the job.
    """
    environment = dict(os.environ if environment is None else environment)
    path = job_command.find_program(command[0], environment)
    words = [*starter, *command]
    if starter:
        path = job_command.find_program(starter[0], environment)
    stand_in_for_closed()
    started = time.time()
    name = name or home.job_name(command)
    identity = home.new_id(name, started)
    info = {
        "kind": kind,
        "command": list(command),
        "cwd": _working_folder(),
        "started": started,
        "boot_id": processes.boot_id(),
        "doctor_pid": os.getpid(),
        "doctor_start_ticks": processes.find_start_ticks(os.getpid()),
        "doctor_version": __version__,
        **describe_series(environment, of_nodes=nodes is not None),
        **facts,
    }
    if directory is None:
        recording = RunRecording.begin_at_home(name, started, info, environment, nodes)
    else:
        recording = RunRecording.begin(directory, {"id": identity, **info}, nodes)
    console = _connect(recording) if capture else Console()
    inbox = Inbox()
    group_probe = SignalGroupProbe()
    outside = recording.folder if directory is not None else None
    try:
        with remembered(outside, identity, environment):
            pid = job_command.start_program(
                path,
                words,
                job_environment(environment, recording.boxes),
                streams=console.streams,
                signal_mask=inbox.before,
            )
            console.let_go()
            idle = threading.Timer(SETTLED, _idly, [meanwhile, recording.folder])
            idle.daemon = True
            idle.start()
            status, asked = _accompany(pid, recording, console, inbox, group_probe, alarm=alarm)
            idle.cancel()
    finally:
        group_probe.close()
        inbox.close()
    end = split_wait_status(status)
    recording.finish(
        **end, ended=time.time(), asked=asked, doctor_cpu_seconds=round(time.process_time(), 3)
    )
    recording.report_trouble()
    code = os.waitstatus_to_exitcode(status)
    return Observed(
        recording.folder,
        code if code >= 0 else 128 - code,
        seconds=time.time() - started,
        leads=recording.leads,
        asked=asked is not None,
    )


def _connect(recording: RunRecording) -> Console:
    """Returns the channels of the job's output; none without a recording, or if they cannot be set
    up: then the job gets our own standard output and error."""
    if recording.part is None:
        return Console()
    try:
        return connect(recording.part / layout.CONSOLE)
    except OSError as error:
        print_message(f"the job's output is not recorded ({error.strerror}).")
        return Console()


def _accompany(
    pid: int,
    recording: RunRecording,
    console: Console,
    inbox: Inbox,
    group_probe: SignalGroupProbe,
    *,
    alarm: Callable[[Path], Alarm] | None,
) -> tuple[int, str | None]:
    """Accompanies the job from its start to the end of its output. Returns its wait status, and the
    signal that asked it to end."""
    recording.note(
        job_pid=pid,
        job_start_ticks=processes.find_start_ticks(pid),
        console_file=console.files,
    )
    folder = recording.folder
    on_hang = alarm(folder) if alarm is not None and folder is not None else None
    watch = Watch(recording, pid, on_hang, console.copy_files) if folder is not None else None
    if watch is not None:
        watch.start()
    forwarder = SignalForwarder(pid, inbox, console, group_probe)
    status = forwarder.wait(watch.knows if watch is not None else lambda other: other == pid)
    if watch is not None:
        watch.finish(status)
    console.drain(forwarder.patient, inbox.descriptor)
    return status, forwarder.asked


def _idly(task: Callable[[Path | None], None] | None, folder: Path | None) -> None:
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)  # of this thread, on Linux
    if task is not None:
        task(folder)


def _working_folder() -> str | None:
    try:
        return os.getcwd()
    except OSError:
        return None  # it was removed


class JobSequence:
    """Runs jobs one after another and handles signals while it is entered; main thread only.
    `asked`: the first signal."""

    def __init__(self) -> None:
        self.asked: signal.Signals | None = None
        self._running: subprocess.Popen[bytes] | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> JobSequence:
        self._before = {number: signal.signal(number, self._pass_on) for number in ASKING}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)

    def run(self, command: Sequence[str]) -> int:
        """Runs a command without input and without showing its output. Returns its exit code, or
        128 + the signal that ended it. Raises OSError."""
        nowhere = subprocess.DEVNULL
        # In our own session the terminal's Ctrl-C would reach the job twice.
        self._running = subprocess.Popen(
            command, stdin=nowhere, stdout=nowhere, stderr=nowhere, start_new_session=True
        )
        if self.asked is not None:  # received while it was being started
            self._tell(self.asked)
        code = self._running.wait()
        self._running = None
        return code if code >= 0 else 128 - code

    def _pass_on(self, number: int, _frame: FrameType | None) -> None:
        self.asked = self.asked or signal.Signals(number)
        self._tell(signal.Signals(number))

    def _tell(self, number: signal.Signals) -> None:
        if self._running is not None:
            with suppress(ProcessLookupError):
                os.kill(self._running.pid, number)
