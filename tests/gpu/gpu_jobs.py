"""Runs jobs on the device of the GPU tests, bare and under the doctor, and keeps what they show."""

from __future__ import annotations

import json
import sys
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from mgpu_probes.inprocess.layout import BOX_SUFFIX, PHASES

from mgpu_doctor.case.model import Rank
from mgpu_doctor.case.recording_case import load_recording
from mgpu_doctor.diagnosis import diagnose
from mgpu_doctor.findings import Diagnosis
from mgpu_doctor.recording.box import read_box
from tests.support.jobs import Ended, forked, plain, run

JOBS = Path(__file__).parent / "jobs"
PRETEND, CUDA = "pretend", "cuda"
WARM_UP = 2
"""Timed steps that are no measure: memory is allocated, kernels are loaded."""
LARGEST_FIXTURE = 2 << 20


@dataclass(frozen=True)
class Device:
    """Where jobs train. A GPU that two ranks share switches between them about every 2 ms, and its
    clock rises and falls: there, jobs take longer steps, and times are compared less closely."""

    kind: str
    build: Path | None = None
    """Where the pretend device is compiled."""
    scale: float = 1.0
    """By which work takes longer than on the pretend device."""
    steps: int = 80
    """Of a job."""
    limited: tuple[str, ...] = ("--usual-limit", "--steps", "300")
    """Options of a job of which the probe times as many steps as it may. Of the pretend device,
    whose events cost much on a busy machine, it otherwise times every step."""
    error_share: float = 0.0
    error_ms: float = 0.5
    """What an excess may differ from what was planted: the larger of the two."""

    @property
    def options(self) -> tuple[str, ...]:
        """Of every job."""
        build = () if self.build is None else ("--build", str(self.build))
        return ("--device", self.kind, *build)

    def tolerance(self, milliseconds: float) -> float:
        """What a measurement of so much may differ."""
        return max(self.error_ms, self.error_share * milliseconds)

    def run(self, *options: str, ranks: int = 1, doctor: Sequence[str] = ()) -> Ended:
        """Runs `jobs/device_training.py` to its end."""
        usual = ("--scale", str(self.scale), "--steps", str(self.steps))
        given = (*self.options, *usual, *options)
        # Ranks on the pretend device are forked by a process that has loaded torch.
        launcher = forked if ranks > 1 and self.kind == PRETEND else plain
        return run([*doctor, *launcher(str(JOBS / "device_training.py"), *given, ranks=ranks)])

    def run_script(self, name: str, *options: str, doctor: Sequence[str] = ()) -> dict[str, Any]:
        """What another script of `jobs` reports, in one process."""
        ended = run([*doctor, *plain(str(JOBS / name), *self.options, *options, ranks=1)])
        return read_reports(ended, 1)[0]

    def train(self, *options: str, ranks: int = 1) -> dict[int, dict[str, Any]]:
        """What each rank of a bare job reports at its end."""
        return read_reports(self.run(*options, ranks=ranks), ranks)

    def watch(self, folder: Path, *options: str, ranks: int = 1) -> Watched:
        """Trains under the doctor."""
        recording = folder / "recording"
        ended = self.run(*options, ranks=ranks, doctor=under_doctor(recording))
        case = load_recording(recording)
        return Watched(recording, read_reports(ended, ranks), case.ranks, diagnose(case))


CUDA_DEVICE = Device(CUDA, scale=1.5, steps=120, limited=(), error_share=0.15, error_ms=0.5)


def under_doctor(recording: Path) -> tuple[str, ...]:
    """What comes before the command."""
    return (sys.executable, "-m", "mgpu_doctor", "run", "-q", "--dir", str(recording), "--")


def read_reports(ended: Ended, ranks: int) -> dict[int, dict[str, Any]]:
    """What each rank printed; the job must have ended well."""
    assert ended.code == 0, ended.err
    printed = [json.loads(line) for line in ended.out.splitlines() if line.startswith('{"rank"')]
    assert len(printed) == ranks, ended.err
    return {report["rank"]: report for report in printed}


@dataclass(frozen=True)
class Watched:
    """A job that ran under the doctor."""

    recording: Path
    reports: Mapping[int, Mapping[str, Any]]
    ranks: Sequence[Rank]
    diagnosis: Diagnosis

    def phases(self, rank: int) -> dict[str, float]:
        """Phase -> median ms on the device, of the phases that take any time."""
        times = self.times(rank)
        middle = np.median(np.nan_to_num(times["phases"]), axis=0) * 1e3
        return {phase: ms for phase, ms in zip(PHASES, middle, strict=True) if ms > 0.01}

    def metadata(self, rank: int) -> Mapping[str, Any]:
        """The process metadata of a rank."""
        boxes = [read_box(path) for path in self.recording.rglob(f"*{BOX_SUFFIX}")]
        (birth,) = (box.birth for box in boxes if box.identity.pid == self.ranks[rank].pid)
        return birth

    def times(self, rank: int, least: int = 10) -> Any:
        """The device's times of at least so many steps of a rank."""
        times = self.ranks[rank].device_times
        assert times is not None, self.metadata(rank)
        timed = f"{len(times)} steps were timed: {self.metadata(rank).get('device_timing')}"
        assert len(times) >= least + WARM_UP, timed
        return times[WARM_UP:]


@dataclass
class Figures:
    """What the tests measured, written as JSON at their end; recordings beside it."""

    folder: Path | None
    """Where they are kept; None: nowhere, as they say nothing of a real device."""
    device: dict[str, Any] = field(default_factory=dict)
    measured: dict[str, Any] = field(default_factory=dict)

    def note(self, **figures: Any) -> None:
        """Adds figures; each is named once. Times are in the unit that the name ends with."""
        twice = figures.keys() & self.measured.keys()
        assert not twice, f"measured twice: {twice}"
        self.measured.update(figures)

    def keep(self, name: str, recording: Path) -> None:
        """Keeps a recording as a fixture of tests that need no GPU."""
        if self.folder is None:
            return
        path = self.folder / f"{name}.tar.xz"
        with tarfile.open(path, "w:xz") as archive:
            archive.add(recording, arcname=name)
        if path.stat().st_size > LARGEST_FIXTURE:
            path.unlink()
            self.measured.setdefault("not_kept", []).append(name)

    def write(self) -> None:
        """Writes `figures.json`."""
        if self.folder is not None:
            made = {"device": self.device, "measured": self.measured}
            text = json.dumps(made, indent=1, sort_keys=True, default=float)
            (self.folder / "figures.json").write_text(f"{text}\n", encoding="utf-8")
