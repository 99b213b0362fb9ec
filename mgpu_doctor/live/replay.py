"""Replays a recording: its frames at any moment, with the newest samples of each host."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from mgpu_doctor.case.box_files import find_boxes
from mgpu_doctor.case.device_samples import DeviceSample
from mgpu_doctor.case.model import Case
from mgpu_doctor.case.recording_case import load_recording
from mgpu_doctor.diagnosis import diagnose
from mgpu_doctor.findings import Followed
from mgpu_doctor.live.frame import NO_PROGRESS, Frame, Position
from mgpu_doctor.live.frame_source import all_ranks
from mgpu_doctor.live.history_collector import Collector
from mgpu_doctor.live.host_statuses import HOST_GONE, HOST_LATE, list_hosts
from mgpu_doctor.live.seen_job import Seen
from mgpu_doctor.recording.parallel_boxes import KeptBoxes
from mgpu_doctor.rules.settings import DEFAULTS, Settings

SPEEDS = (0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
NO_JOB = "This recording contains no job, only GPUs and host."


class _Timeline(NamedTuple):
    """Samples of one host, oldest first. `stands`: seconds for which a sample stays valid while
    other hosts have newer ones."""

    times: list[float]
    samples: list[DeviceSample]
    stands: float


class NewestSamples:
    """All samples of a recording, ordered once."""

    def __init__(self, samples: Iterable[DeviceSample]) -> None:
        hosts: dict[str, list[DeviceSample]] = defaultdict(list)
        for sample in sorted(samples, key=lambda sample: sample.at):
            hosts[sample.host or ""].append(sample)
        self._hosts = [_timeline(hosts[name]) for name in sorted(hosts)]

    def until(self, at: float) -> tuple[DeviceSample, ...]:
        """Returns the newest sample of each host at a moment, sorted by host name."""
        device_samples = [
            (host.samples[place - 1], host.stands)
            for host in self._hosts
            if (place := bisect_right(host.times, at))
        ]
        newest = max((sample.at for sample, _ in device_samples), default=at)
        return tuple(sample for sample, stands in device_samples if newest - sample.at <= stands)


def _timeline(samples: list[DeviceSample]) -> _Timeline:
    times = [sample.at for sample in samples]
    usual = (times[-1] - times[0]) / max(1, len(times) - 1)
    return _Timeline(times, samples, max(HOST_GONE, HOST_LATE * usual))


class Replay:
    """Replays a recording from its start. Raises `NotARecording` if the folder is not one."""

    def __init__(self, recording: Path, settings: Settings = DEFAULTS) -> None:
        self._recording = recording
        self._settings = settings
        self._boxes = KeptBoxes(find_boxes(recording, {}))
        self._whole = whole = load_recording(recording, read=self._boxes)
        self._past: Collector | None = None
        self._devices = NewestSamples(whole.device_samples)
        start, end = _begin_and_end(whole)
        self._lock = threading.Lock()
        self._position = Position(start, end, start, 1.0, paused=False)
        self._shown: tuple[float, Seen] | None = None

    def frame(self, passed: float) -> Frame:
        with self._lock:
            if not self._position.paused:
                self._move(passed * self._position.speed)
            position = self._position
        case, seen = self._case(position)
        sampled = self._devices.until(position.at)
        return Frame(
            at=position.at,
            source=self._recording.name,
            diagnosis=seen.diagnosis if seen else None,
            hint=None if seen else NO_JOB,
            heat=seen.heat if seen else None,
            map=seen.map if seen else None,
            hosts=list_hosts(case) if seen else (),
            going=seen.going if seen else NO_PROGRESS,
            devices=sampled[-1] if sampled else None,
            elsewhere=sampled[:-1],
            host=case.host_samples[-1] if case.host_samples else None,
            followed=seen.followed if seen else (),
            replay=position,
            history=self._collected().history(position.at, all_ranks(case)),
        )

    def close(self) -> None:
        """Does nothing: a replay has no sampling threads."""

    def _case(self, position: Position) -> tuple[Case, Seen | None]:
        """Returns the case at that moment; None without a job."""
        if not _has_job(self._whole):
            return _cut(self._whole, position.at), None
        if self._shown is None or self._shown[0] != position.at:
            case = load_recording(self._recording, until=position.at, read=self._boxes)
            diagnosis = diagnose(case, self._settings)
            seen = Seen.of(diagnosis, case, self._followed(position), position.at)
            self._shown = (position.at, seen)
        return self._shown[1].diagnosis.case, self._shown[1]

    def _collected(self) -> Collector:
        """Returns all samples of the recording, collected once."""
        if self._past is None:
            self._past = Collector.of(self._whole.device_samples, self._whole.host_samples)
        return self._past

    def _followed(self, position: Position) -> tuple[Followed, ...]:
        """Returns the findings tracked so far; empty after a step back."""
        if self._shown is None or position.at < self._shown[0]:
            return ()
        return self._shown[1].followed

    def pause(self) -> None:
        """Pauses or resumes; at the end it restarts."""
        with self._lock:
            position = self._position
            if position.paused and position.at >= position.end:
                position = position._replace(at=position.start)
            self._position = position._replace(paused=not position.paused)

    def step(self, seconds: float) -> bool:
        """Moves by this many recorded seconds. Returns whether it moved."""
        with self._lock:
            before = self._position.at
            self._move(seconds)
            return self._position.at != before

    def seek(self, share: float) -> bool:
        """Goes to a share 0..1 of the recording. Returns whether it was elsewhere."""
        with self._lock:
            position = self._position
            at = position.start + share * (position.end - position.start)
            self._position = position._replace(at=at)
            return position.at != at

    def faster(self, steps: int) -> bool:
        """Moves this many places up (or down) in `SPEEDS`. Returns whether the speed changed."""
        with self._lock:
            before = self._position.speed
            place = SPEEDS.index(before) + steps
            speed = SPEEDS[max(0, min(len(SPEEDS) - 1, place))]
            self._position = self._position._replace(speed=speed)
            return speed != before

    def _move(self, seconds: float) -> None:
        position = self._position
        at = max(position.start, min(position.end, position.at + seconds))
        over = at >= position.end and seconds > 0
        self._position = position._replace(at=at, paused=position.paused or over)


def _has_job(case: Case) -> bool:
    return bool(case.ranks or case.job.command)


def _cut(case: Case, at: float) -> Case:
    """Returns the case with host samples up to a moment."""
    hosts = bisect_right(case.host_samples, at, key=lambda sample: sample.at)
    return replace(case, host_samples=case.host_samples[:hosts])


def _begin_and_end(case: Case) -> tuple[float, float]:
    """Returns begin and end of a recording in seconds since the epoch, from its samples if it has
    no job."""
    samples = [device_sample.at for device_sample in case.device_samples] + [
        host_sample.at for host_sample in case.host_samples
    ]
    end = case.observed if _has_job(case) else max(samples, default=case.observed)
    starts = [case.job.started, *(rank.started for rank in case.ranks)]
    return min([end, *(start for start in starts if start is not None)]), end
