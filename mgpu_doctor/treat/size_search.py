"""Searches the batch size or the number of ranks that serves a goal best, one trial for each size.

Before each trial, its memory is predicted from those before, and nothing is started that would need
more than the machine or a GPU has left. A trial that eats up the machine's memory all the same is
ended before other jobs suffer.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path

import numpy as np

from mgpu_doctor.analysis.comparing.step_time_noise import Level, mean_level
from mgpu_doctor.analysis.trials.memory_effect import MemoryChange, compare_memory
from mgpu_doctor.analysis.trials.paired_effect import (
    Block,
    Saving,
    estimate_saving,
    pool_noise,
)
from mgpu_doctor.analysis.trials.trial_run import TrialRun
from mgpu_doctor.case.model import Case
from mgpu_doctor.treat.job_size import (
    ACCUMULATION_OPTIONS,
    BATCH_OPTIONS,
    RANK_OPTIONS,
    RATE_OPTIONS,
    Setting,
    Size,
    find_setting,
)
from mgpu_doctor.treat.memory_room import (
    GpuRoom,
    explain_gpu_shortage,
    explain_host_shortage,
    find_gpu_room,
    is_short,
)
from mgpu_doctor.treat.trial_runner import Problem, Trial, TrialFailure, TrialRunner
from mgpu_doctor.treat.trial_session import BaselineError

STEPS = 30
"""Measured steps of each trial, unless the user names them. A choice."""
MOST_DOUBLINGS = 12
HALVINGS = 2
"""Trials between the largest batch that fits and the first that does not. A choice."""
MOST_RANK_COUNTS = 8
BETTER = 1.05
"""A doubled batch must gain so much throughput, or the next one is the last that is tried."""
_SLOWER, _MORE = 4.0, 30.0
_NEXT, _CONFIRMING = 2.0, 4.0
"""Time for the next trial and for the last four, in trials as long as the longest so far."""


class Goal(str, Enum):
    """What a search is for."""

    THROUGHPUT = "throughput"
    """Most samples per second, by the batch size."""
    MEMORY = "memory"
    """The largest batch that fits."""
    TIME_PER_SAMPLE = "time-per-sample"
    """Least time per sample at the same global batch, by the number of ranks."""


@dataclass(frozen=True, slots=True)
class Point:
    """What a trial of a size measured. Times in seconds."""

    size: Size
    step: Level | None = None
    """None: it was not measured."""
    samples: int | None = None
    """Per step, of all ranks."""
    memory_bytes: int | None = None
    """Peak memory of the rank with the most."""
    failure: TrialFailure | None = None
    """Why it was not measured."""

    @property
    def reason(self) -> str | None:
        """Why it was not measured, a clause."""
        return None if self.failure is None else self.failure.reason

    @property
    def per_second(self) -> float | None:
        """Samples per second, of all ranks."""
        if self.step is None or self.samples is None:
            return None
        return self.samples / self.step.seconds


class UnknownSizeError(Exception):
    """The command does not name what is to be varied; the message is one clear sentence."""


@dataclass(slots=True)
class SizeSearch:
    """A search. What was measured so far can be read at any time."""

    command: Sequence[str]
    goal: Goal
    private: bool
    steps: int = STEPS
    points: list[Point] = field(default_factory=list)
    """One for each size, the job as it is first."""
    saved: Saving | None = None
    """Share of the time per sample that the best size saves; None: it was not confirmed."""
    memory: MemoryChange | None = None
    """Memory per rank as it is and in the best size, of the same runs; None: it is unknown."""
    complete: bool = False
    batch: Setting | None = None
    ranks: Setting | None = None
    micro_batches: Setting | None = None
    rate: Setting | None = None
    """The learning rate, which grows linearly with the samples per update."""
    _folder: Path = Path()
    _ends: float = 0.0
    _report: Callable[[str, float], None] = lambda *_: None
    _is_stopped: Callable[[], bool] = bool
    _rank_count: int = 1
    _is_global: bool = False
    _is_on_gpus: bool = False
    """Whether the memory of the trials is that of GPUs."""
    _gpu_room: GpuRoom | None = None
    _longest: float = 0.0
    _count: int = 0

    def find_settings(self) -> None:
        """Finds the numbers to vary in the command. Raises `UnknownSizeError`."""
        self.batch = find_setting(self.command, BATCH_OPTIONS)
        self.ranks = find_setting(self.command, RANK_OPTIONS)
        self.micro_batches = find_setting(self.command, ACCUMULATION_OPTIONS)
        self.rate = find_setting(self.command, RATE_OPTIONS)
        if self.batch is None:
            treats = (
                ", or name treatments that save memory, such as --only activation-checkpointing"
                if self.goal is Goal.MEMORY
                else ""
            )
            raise UnknownSizeError(
                "the command names no batch size to vary: add the script's option, such as "
                f"--batch-size 32{treats}."
            )
        if self.goal is Goal.TIME_PER_SAMPLE and self.ranks is None:
            raise UnknownSizeError(
                "the command names no number of ranks to vary: add the launcher's option, such as "
                "--nproc-per-node 2."
            )

    def run(
        self,
        folder: Path,
        *,
        budget: float,
        report: Callable[[str, float], None],
        is_stopped: Callable[[], bool] = bool,
    ) -> None:
        """Tries the sizes. Raises `BaselineError` if the job cannot be measured as it is, and
        `StoppedError`."""
        self.find_settings()
        assert self.batch is not None
        self._folder, self._report, self._is_stopped = folder, report, is_stopped
        self._ends = time.monotonic() + budget
        now = self._read_size(self.batch)
        first = self._try(now)
        if first.failure is not None:
            raise BaselineError(f"the job cannot be tried: {first.reason}.", first.failure)
        self.points.append(first)
        if self.goal is Goal.TIME_PER_SAMPLE:
            self._try_rank_counts(now)
        else:
            self._try_batches(now)
        best = self.find_best()
        if best is not None and best.size != now:
            self._confirm(now, best)
        self.complete = True

    def find_best(self) -> Point | None:
        """The size that serves the goal best among those that were measured."""
        measured = [point for point in self.points if point.step is not None]
        if self.goal is Goal.MEMORY:
            return max(measured, key=lambda point: point.size.batch, default=None)
        return max(measured, key=lambda point: point.per_second or 0.0, default=None)

    def write_command(self, size: Size) -> list[str]:
        """The command in this size."""
        command = list(self.command)
        for setting, value in (
            (self.batch, size.batch),
            (self.ranks, size.ranks),
            (self.micro_batches, size.micro_batches),
        ):
            if setting is not None and value is not None:
                command = setting.write(command, str(value))
        growth = self.find_growth(size)
        if self.rate is not None and growth != 1:
            command = self.rate.write(command, f"{float(self.rate.text) * growth:.6g}")
        return command

    def find_growth(self, size: Size) -> float:
        """Samples per update in this size / in the job as it is."""
        if self.batch is None or self.goal is Goal.TIME_PER_SAMPLE:
            return 1.0
        return size.share / self._read_size(self.batch).share

    def _read_size(self, batch: Setting) -> Size:
        ranks, micro_batches = self.ranks, self.micro_batches
        return Size(
            batch.value,
            None if ranks is None else ranks.value,
            None if micro_batches is None else micro_batches.value,
        )

    def _try_batches(self, now: Size) -> None:
        best, size, without_gain = self.points[0].per_second or 0.0, now, 0
        for _ in range(MOST_DOUBLINGS):
            size = size.double()
            if not self._add(size):
                break
            gained = self.points[-1].per_second or 0.0
            without_gain = 0 if gained > best * BETTER else without_gain + 1
            best = max(best, gained)
            if self.goal is Goal.THROUGHPUT and without_gain > 1:
                return
        if self.goal is Goal.MEMORY and self.points[-1].step is None:
            fits, limit = size.batch // 2, size.batch
            for _ in range(HALVINGS):
                middle = (fits + limit) // 2
                if self._add(replace(size, batch=middle)):
                    fits = middle
                else:
                    limit = middle

    def _try_rank_counts(self, now: Size) -> None:
        total = now.batch if self._is_global else now.batch * self._rank_count
        most = max(len(os.sched_getaffinity(0)), self._rank_count)
        counts = [count for count in range(1, most + 1) if total % count == 0]
        others = [count for count in counts if count != self._rank_count][-MOST_RANK_COUNTS:]
        for count in others:
            batch = now.batch if self._is_global else total // count
            if not self._has_time():
                return
            self.points.append(self._try(replace(now, batch=batch, ranks=count)))

    def _add(self, size: Size) -> bool:
        """Tries a size if it may fit; whether it did."""
        if not self._has_time():
            return False
        reason = self._explain_shortage(size)
        if reason is not None:
            self.points.append(Point(size, failure=TrialFailure(Problem.TOO_LARGE, reason)))
            return False
        self.points.append(self._try(size))
        return self.points[-1].step is not None

    def _explain_shortage(self, size: Size) -> str | None:
        """Why a size is not to be tried: by the line through the two largest batches so far."""
        known = sorted(
            (point.size.batch, point.memory_bytes) for point in self.points if point.memory_bytes
        )[-2:]
        if not known:
            return None
        slope = known[-1][1] / known[-1][0]
        if len(known) > 1:
            slope = max(0.0, (known[1][1] - known[0][1]) / (known[1][0] - known[0][0]))
        needed = int(known[-1][1] + slope * (size.batch - known[-1][0]))
        if self._is_on_gpus:
            return explain_gpu_shortage(needed, self._gpu_room)
        return explain_host_shortage(needed * self._rank_count)

    def _confirm(self, now: Size, best: Point) -> None:
        """Runs the job as it is and in its best size in the order A B B A."""
        if self._ends - time.monotonic() < _CONFIRMING * self._longest:
            return
        runs = [self._try(size) for size in (now, best.size, best.size, now)]
        self.memory = _compare_memory(runs)
        levels = [_per_sample(point) for point in (self.points[0], *runs)]
        whole = [level for level in levels if level is not None]
        if len(whole) < len(levels):
            return
        earlier, before, first, second, after = whole
        noise = pool_noise([earlier, before, after], [(first, second)])
        if noise is not None:
            self.saved = estimate_saving([Block(before, first, second, after)], noise)

    def _try(self, size: Size) -> Point:
        left = self._ends - time.monotonic()
        self._report(describe_size(size, self.goal), left)
        self._count += 1
        command = self.write_command(size)
        runner = TrialRunner(
            command,
            self._folder / f"size-{self._count}",
            private=self.private,
            is_stopped=self._is_stopped,
        )
        limit = _SLOWER * self._longest + _MORE if self._longest else left
        trial = runner.run(
            {}, steps=self.steps, limit=min(limit, left), keeps_case=True, is_short=is_short
        )
        if isinstance(trial.result, TrialFailure):
            return Point(size, failure=trial.result)
        self._longest = max(self._longest, trial.seconds)
        samples = self._count_samples(size, trial)
        memory = self._note_memory(trial.result, trial.case)
        level = mean_level(trial.result.seconds)
        return Point(size, level, samples, memory)

    def _note_memory(self, run: TrialRun, case: Case | None) -> int | None:
        """Peak memory of the rank with the most. Of a job on GPUs, memory of the host, which is all
        that is known of a trial too short for a sample of its GPU, is not held against theirs."""
        if run.is_gpu_memory and not self._is_on_gpus:
            self._is_on_gpus = True
            self.points[:] = [replace(point, memory_bytes=None) for point in self.points]
        if case is not None and run.is_gpu_memory:
            self._gpu_room = find_gpu_room(case) or self._gpu_room
        return run.memory_bytes if run.is_gpu_memory is self._is_on_gpus else None

    def _count_samples(self, size: Size, trial: Trial) -> int | None:
        """Samples per step of all ranks: as recorded, else the batch of each rank."""
        case = trial.case
        if case is None:
            return None
        recorded = [_median_samples(case, index) for index in range(len(case.ranks))]
        if not self.points:
            self._rank_count = len(case.ranks)
            self._is_global = bool(recorded[0]) and recorded[0] % size.batch != 0
        if all(recorded):
            return sum(recorded)
        return size.share if self._is_global else size.share * len(case.ranks)

    def _has_time(self) -> bool:
        return self._ends - time.monotonic() > (_NEXT + _CONFIRMING) * self._longest


def describe_size(size: Size, goal: Goal) -> str:
    """`batch 32`, or `4 ranks with batch 8`."""
    if goal is Goal.TIME_PER_SAMPLE and size.ranks is not None:
        return f"{size.ranks} {'rank' if size.ranks == 1 else 'ranks'} with batch {size.batch}"
    return f"batch {size.batch}"


def _median_samples(case: Case, index: int) -> int:
    samples = case.ranks[index].steps["samples"]
    known = samples[samples > 0]
    return int(np.median(known)) if len(known) else 0


def _compare_memory(runs: Sequence[Point]) -> MemoryChange | None:
    """The memory of runs in the order A B B A; None: it is unknown of one of them."""
    before, first, second, after = (point.memory_bytes for point in runs)
    if before is None or first is None or second is None or after is None:
        return None
    return compare_memory([(before, first, second, after)], [before, after])


def _per_sample(point: Point) -> Level | None:
    if point.step is None or not point.samples:
        return None
    return Level(point.step.seconds / point.samples, point.step.error, point.step.freedom)
