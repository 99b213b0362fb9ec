"""Where frames come from: what runs on this machine, or a recording played again.

A source is called by one thread and may be steered from another. Live and replay run the same
code: load the recording up to a moment, diagnose it, and freeze the result.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Protocol

from mgpu_doctor.case.gpu import DeviceSample
from mgpu_doctor.case.load import NotARecording, load_recording
from mgpu_doctor.case.model import Case, HostSample, Outcome, Rank
from mgpu_doctor.diagnose import diagnose
from mgpu_doctor.recording.box import read_box
from mgpu_doctor.recording.home import latest
from mgpu_doctor.recording.living import is_living, living
from mgpu_doctor.rules.settings import DEFAULTS, Settings
from mgpu_doctor.tui.followed import Followed
from mgpu_doctor.tui.frame import Frame, Position
from mgpu_doctor.tui.history.collect import Collector
from mgpu_doctor.tui.machine import Machine
from mgpu_doctor.tui.recorder import Recorder
from mgpu_doctor.tui.watch import Seen, Watch

MOST_BOXES = 256
"""Boxes that a replay keeps in memory (a few megabytes each)."""
SPEEDS = (0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
NO_JOB = "This recording holds no job, GPUs and host alone."
START_HINT = "No job is under observation here. To start one: mgpu-doctor run -- COMMAND"


class Source(Protocol):
    def frame(self, passed: float) -> Frame:
        """The frame to show now; `passed`: seconds since the last one (0: at once)."""
        ...


class Live:
    """The jobs that run here: `given`, else the newest; and the machine itself. `recorder`: takes
    down what the machine does."""

    def __init__(
        self,
        given: Path | None = None,
        clock: Callable[[], float] = time.time,
        settings: Settings = DEFAULTS,
        recorder: Recorder | None = None,
    ) -> None:
        self._settings = settings
        self._machine = Machine()
        self._collector = Collector()
        self._recorder = recorder
        self._began = False
        self._clock = clock
        self._given = given
        self._watched = given
        self._watch = Watch(given, settings=settings) if given else None
        self._over: Seen | None = None
        self._skip = threading.Event()

    def next_job(self) -> None:
        """From the next frame on: another of the jobs that are alive."""
        self._skip.set()

    def frame(self, passed: float) -> Frame:  # noqa: ARG002 - a live source knows the time itself
        alive = living()
        self._choose(alive)
        watched, hint = self._watched, _start_hint() if self._watched is None else None
        seen = None
        try:
            seen = self._examine()
        except NotARecording as reason:
            hint = str(reason)
        case = seen.diagnosis.case if seen else None
        self._look_back(case, alive)
        ranks = seen.diagnosis.ranks if seen else ()
        devices = self._machine.devices()
        host = self._machine.host(rank.pid for rank in ranks if rank.pid is not None)
        self._collect(devices, host)
        at = self._clock()
        return Frame(
            at=at,
            source=self._name(),
            diagnosis=seen.diagnosis if seen else None,
            heat=seen.heat if seen else None,
            rate=seen.rate if seen else None,
            devices=devices,
            host=host,
            hint=hint,
            age=seen.age if seen else 0.0,
            resolved=seen.resolved if seen else (),
            others=len([job for job in alive if job != watched]),
            history=self._collector.history(at, _all_ranks(case)),
        )

    def _name(self) -> str:
        name = f"live  {self._watched.name}" if self._watched else "live"
        return f"{name}  {self._recorder.state}" if self._recorder else name

    def _look_back(self, case: Case | None, alive: list[Path]) -> None:
        """What was recorded of this machine before the first frame."""
        if not self._began and case is not None and self._watched in alive:
            self._collector.add_all(case.device_samples, case.host_samples)
        self._began = True

    def _collect(self, devices: DeviceSample | None, host: HostSample | None) -> None:
        if devices is not None:
            self._collector.add_devices(devices)
        if host is not None:
            self._collector.add_host(host)
        if self._recorder is not None:
            self._recorder.write(devices, host)

    def _choose(self, alive: list[Path]) -> None:
        if self._skip.is_set():
            self._skip.clear()
            if alive:
                here = alive.index(self._watched) if self._watched in alive else -1
                self._turn_to(alive[(here + 1) % len(alive)])
        elif self._watched is None and alive:
            self._turn_to(alive[0])

    def _turn_to(self, recording: Path) -> None:
        if self._watch is not None:
            self._watch.close()
        self._watch = Watch(recording, settings=self._settings)
        self._watched, self._over = recording, None

    def _examine(self) -> Seen | None:
        """A job that is over is examined once more and then kept as it is."""
        if self._watch is None or self._watched is None or self._over is not None:
            return self._over
        over = not is_living(self._watched)
        seen = self._watch.look(anew=over)
        if over and seen.diagnosis.case.job.outcome is not Outcome.RUNNING:
            self._over = replace(seen, age=0.0)
            self._watch.close()
        return seen


class Replay:
    """A recording, played again from its start. Raises `NotARecording` when it is none."""

    def __init__(self, recording: Path, settings: Settings = DEFAULTS) -> None:
        self._recording = recording
        self._settings = settings
        self._whole = whole = load_recording(recording)
        self._past: Collector | None = None
        start, end = _begin_and_end(whole)
        self._lock = threading.Lock()
        self._position = Position(start, end, start, 1.0, paused=False)
        self._shown: tuple[float, Seen] | None = None
        self._boxes = lru_cache(MOST_BOXES)(read_box)

    def frame(self, passed: float) -> Frame:
        with self._lock:
            if not self._position.paused:
                self._move(passed * self._position.speed)
            position = self._position
        case, seen = self._case(position)
        return Frame(
            at=position.at,
            source=self._recording.name,
            diagnosis=seen.diagnosis if seen else None,
            hint=None if seen else NO_JOB,
            heat=seen.heat if seen else None,
            rate=seen.rate if seen else None,
            devices=case.device_samples[-1] if case.device_samples else None,
            host=case.host_samples[-1] if case.host_samples else None,
            resolved=seen.resolved if seen else (),
            replay=position,
            history=self._collected().history(position.at, _all_ranks(case)),
        )

    def _case(self, position: Position) -> tuple[Case, Seen | None]:
        """What was known at that moment; without a job there is nothing to examine."""
        if not _has_job(self._whole):
            return _cut(self._whole, position.at), None
        if self._shown is None or self._shown[0] != position.at:
            case = load_recording(self._recording, until=position.at, read=self._boxes)
            diagnosis = diagnose(case, self._settings)
            seen = Seen.of(diagnosis, case, self._followed(position), position.at)
            self._shown = (position.at, seen)
        return self._shown[1].diagnosis.case, self._shown[1]

    def _collected(self) -> Collector:
        """All samples of the recording, gathered once."""
        if self._past is None:
            self._past = Collector.of(self._whole.device_samples, self._whole.host_samples)
        return self._past

    def _followed(self, position: Position) -> tuple[Followed, ...]:
        """What was followed up to here; nothing after a step back."""
        if self._shown is None or position.at < self._shown[0]:
            return ()
        return self._shown[1].followed

    def pause(self) -> None:
        """Stop, or go on; from the end: from the start again."""
        with self._lock:
            position = self._position
            if position.paused and position.at >= position.end:
                position = replace(position, at=position.start)
            self._position = replace(position, paused=not position.paused)

    def step(self, seconds: float) -> None:
        """Move by so many recorded seconds."""
        with self._lock:
            self._move(seconds)

    def seek(self, share: float) -> None:
        """Go to a share 0..1 of the recording."""
        with self._lock:
            position = self._position
            span = position.end - position.start
            self._position = replace(position, at=position.start + share * span)

    def faster(self, steps: int) -> None:
        """So many places up (or down) in `SPEEDS`."""
        with self._lock:
            place = SPEEDS.index(self._position.speed) + steps
            speed = SPEEDS[max(0, min(len(SPEEDS) - 1, place))]
            self._position = replace(self._position, speed=speed)

    def _move(self, seconds: float) -> None:
        position = self._position
        at = max(position.start, min(position.end, position.at + seconds))
        over = at >= position.end and seconds > 0
        self._position = replace(position, at=at, paused=position.paused or over)


def _all_ranks(case: Case | None) -> tuple[Rank, ...]:
    """Also those of earlier attempts: their steps are the past of the same rank."""
    return () if case is None else (*case.earlier, *case.ranks)


def _has_job(case: Case) -> bool:
    return bool(case.ranks or case.job.command)


def _cut(case: Case, at: float) -> Case:
    """With the samples of a moment and before."""
    devices = bisect_right(case.device_samples, at, key=lambda sample: sample.at)
    hosts = bisect_right(case.host_samples, at, key=lambda sample: sample.at)
    return replace(
        case,
        device_samples=case.device_samples[:devices],
        host_samples=case.host_samples[:hosts],
    )


def _begin_and_end(case: Case) -> tuple[float, float]:
    """Of a recording, seconds since the epoch; without a job its samples tell."""
    samples = [one.at for one in case.device_samples] + [one.at for one in case.host_samples]
    end = case.observed if _has_job(case) else max(samples, default=case.observed)
    starts = [case.job.started, *(rank.started for rank in case.ranks)]
    return min([end, *(start for start in starts if start is not None)]), end


def _start_hint() -> str:
    last = latest()
    again = f"\nTo see the last one again: mgpu-doctor top --replay {last.name}" if last else ""
    return f"{START_HINT}{again}"
