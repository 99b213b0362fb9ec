"""Watches a running job's processes from outside, in a thread of its own.

A hanging disk must not delay the forwarding of signals.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import select
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mgpu_probes.outside.host_usage import HostUsage

from mgpu_doctor.launch import box_storage, exit_watch
from mgpu_doctor.launch.box_arrivals import BoxArrivals
from mgpu_doctor.launch.exit_watch import ExitWatch
from mgpu_doctor.launch.hang_watchdog import Alarm, HangWatchdog
from mgpu_doctor.launch.host_tasks import EarlierTasks, OtherTasks
from mgpu_doctor.launch.process_family import Family, Member
from mgpu_doctor.launch.run_recording import RunRecording
from mgpu_doctor.recording import layout
from mgpu_doctor.recording.device_lines import DeviceLines
from mgpu_doctor.recording.write import Lines

if TYPE_CHECKING:
    from mgpu_probes.outside.devices import Devices

SLOWEST = 15.0
COPY_EVERY = 30.0
CONSOLE_EVERY = 5.0
PATIENCE = 2.0
SAMPLED_PIDS = 512
EXITS_LIMIT = 1 << 20
_FIRST_LOOK = 0.05
_AFTER_ARRIVALS = 0.05
"""Least seconds between two listings of processes when ranks arrive: hundreds may start at once."""


def interval(elapsed: float) -> float:
    """Returns the seconds until the next sample, `elapsed` seconds into the run: one for the first
    ten minutes, then 1/600 of the run's age, so that long runs stay cheap and small."""
    return min(SLOWEST, max(1.0, elapsed / 600))


class Watch:
    """Records exits of processes, and host and device samples; copies boxes and console text into
    the recording. Of several tasks of the job on this host, the first one that still runs samples
    it, and watches for hangs, of the ranks of all.

    `alarm`: for a hung job. `copy_console`: copies new output."""

    def __init__(
        self,
        recording: RunRecording,
        pid: int,
        alarm: Alarm | None = None,
        copy_console: Callable[[], None] = lambda: None,
    ) -> None:
        assert recording.folder is not None
        host = recording.folder / layout.HOSTS / recording.host
        self._recording = recording
        self._copy_console = copy_console
        self._first = pid
        self._family = Family(pid)
        self._other_tasks = OtherTasks(recording.folder)
        self._exits = Lines(host / layout.EXITS, EXITS_LIMIT, samples=False)
        self._samples = Lines(host / layout.HOST_SAMPLES, samples=True)
        self._device_samples = DeviceLines(host / layout.DEVICE_SAMPLES)
        self._poll = select.poll()
        self._by_pidfd: dict[int, Member] = {}
        self._wake, self._waker = os.pipe()
        self._poll.register(self._wake, select.POLLIN)
        self._arrivals = BoxArrivals(recording.boxes)
        if self._arrivals.descriptor is not None:
            self._poll.register(self._arrivals.descriptor, select.POLLIN)
        self._arrived = False
        self._copied: dict[str, int] = {}
        self._over = threading.Event()
        self._status: int | None = None
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._devices = threading.Thread(target=self._watch_devices, name="devices", daemon=True)
        own = recording.part if recording.task else host
        self._endings = ExitWatch(recording, (own or host) / layout.ENDING, self._pids, interval)
        self._watchdog = HangWatchdog(recording, pid, self._over, alarm) if alarm else None
        self._earlier = EarlierTasks(recording.folder, recording.host, recording.task)
        self._leads_host = False

    def start(self) -> None:
        if not self._recording.task:
            self._lead_host()
        self._thread.start()
        self._endings.start()

    def _lead_host(self) -> None:
        """Samples the host from now on, and watches for hangs."""
        self._leads_host = True
        self._devices.start()
        if self._watchdog is not None:
            self._watchdog.start()

    def knows(self, pid: int) -> bool:
        """Returns whether the process belongs to the job."""
        return pid in self._family.members

    def finish(self, status: int) -> None:
        """Writes the rest after the job's first process ended with this wait status. Waits for a
        disk or a driver, but not for ever."""
        self._status = status
        self._over.set()
        os.write(self._waker, b".")
        self._thread.join(PATIENCE)
        self._endings.finish(PATIENCE)

    def _run(self) -> None:
        started = time.monotonic()
        host = HostUsage(closely=True)
        looked = look_at = sample_at = started
        copy_at = started + COPY_EVERY
        console_at = started + CONSOLE_EVERY
        step = _FIRST_LOOK
        while True:
            now = time.monotonic()
            if now >= look_at:
                self._check()
                step = min(2 * step, interval(now - started))
                looked, look_at = now, now + step
            if now >= sample_at:
                if not self._leads_host and self._earlier.have_ended():
                    self._lead_host()
                if self._leads_host:
                    pids = dict.fromkeys((*self._pids(), *self._other_tasks.list_pids()))
                    self._write(self._samples, host.sample([*pids][:SAMPLED_PIDS]))
                self._recording.touch()
                sample_at = now + interval(now - started)
            if now >= copy_at:
                self._bring_boxes(partial(box_storage.copy, copied=self._copied))
                copy_at = time.monotonic() + COPY_EVERY
            if now >= console_at:
                self._recording.guarded(self._copy_console)
                console_at = time.monotonic() + CONSOLE_EVERY
            self._note_ends(min(look_at, sample_at, copy_at, console_at) - time.monotonic())
            if self._arrived:
                self._arrived, look_at = False, min(look_at, looked + _AFTER_ARRIVALS)
            if self._over.is_set():
                break
        self._recording.guarded(self._copy_console)
        self._check()
        self._note_ends(0)
        self._arrivals.close()
        if not self._jobs_go_on():
            self._remove_sockets()
        self._bring_boxes(box_storage.copy if self._jobs_go_on() else box_storage.move)

    def _remove_sockets(self) -> None:
        """Removes the sockets of killed ranks."""
        if self._recording.boxes is not None:
            for path in self._recording.boxes.glob("*.sock"):
                self._recording.guarded(partial(path.unlink, missing_ok=True))

    def _pids(self) -> list[int]:
        return list(self._family.members)[:SAMPLED_PIDS]

    def _jobs_go_on(self) -> bool:
        """Returns whether a process of the job still runs and may still write its box."""
        return bool(self._family.members)

    def _check(self) -> None:
        self._family.poll()
        for member in self._family.members.values():
            if member.pidfd is not None and member.pidfd not in self._by_pidfd:
                self._by_pidfd[member.pidfd] = member
                self._poll.register(member.pidfd, select.POLLIN)
        for member in self._family.gone():
            self._note_end(member)

    def _note_ends(self, seconds: float) -> None:
        """Waits at most this many seconds, and records which processes have ended, and whether
        ranks have arrived."""
        for descriptor, _ in self._poll.poll(max(0.0, 1000 * seconds)):
            if descriptor == self._wake:
                os.read(self._wake, 64)
                continue
            if descriptor == self._arrivals.descriptor:
                self._arrived |= self._arrivals.take()
                continue
            self._poll.unregister(descriptor)
            self._note_end(self._by_pidfd.pop(descriptor))

    def _note_end(self, member: Member) -> None:
        at = time.time()
        if member.pid == self._first:
            self._over.wait(PATIENCE)  # our own child: its exact status arrives soon
            status, how = self._status, "wait"
        else:
            status, how = member.ending()
        self._family.forget(member)
        self._endings.someone_ended()
        line = {
            "pid": member.pid,
            "start_ticks": member.start_ticks,
            **exit_watch.split_wait_status(status),
        }
        self._write(self._exits, {**line, "at": at, "how": how})

    def _bring_boxes(self, bring: Callable[[Path, Path], None]) -> None:
        recording = self._recording
        if (
            recording.folder is not None
            and recording.boxes is not None
            and recording.boxes_elsewhere
        ):
            source, target = recording.boxes, layout.boxes(recording.folder, recording.host)
            recording.guarded(lambda: bring(source, target))

    def _watch_devices(self) -> None:
        """Samples devices in a separate thread, because a driver may hang on a GPU that fell off
        the bus."""
        devices = _devices()
        started = time.monotonic()
        while devices is not None:
            self._write(self._device_samples, devices.sample())
            if self._over.wait(interval(time.monotonic() - started)):
                devices.close()
                return

    def _write(self, lines: Lines | DeviceLines, content: dict[str, Any]) -> None:
        self._recording.guarded(lambda: lines.append(content))


def _devices() -> Devices | None:
    """Returns the devices; None without a driver library, and then its bindings are not
    imported."""
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        if importlib.util.find_spec("amdsmi") is None:
            return None
    from mgpu_probes.outside.devices import Devices

    return Devices(stays=True)
