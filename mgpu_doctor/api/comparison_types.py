"""A comparison of runs as typed, frozen data: the object of docs/compare.schema.json, key by key.

Seconds, bytes and fractions from 0 to 1; None: unknown. Runs are named by letters, the first is A.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from mgpu_doctor.api.notebook_views import Card, Result


class Interval(msgspec.Struct, frozen=True):
    """A ratio, and the bounds within which it lies with the comparison's error rate."""

    ratio: float
    low: float
    high: float


class Level(msgspec.Struct, frozen=True):
    """Seconds, and by how much they may be wrong."""

    seconds: float
    bound: float | None


class StepSeconds(msgspec.Struct, frozen=True):
    """The mean and the median step time of a run."""

    mean: Level
    median: Level


class StepWork(msgspec.Struct, frozen=True):
    """What all ranks together process in a step."""

    samples: float | None
    tokens: float | None


class Memory(msgspec.Struct, frozen=True):
    """Peak memory in bytes: of the fullest rank (`most`), and by rank."""

    kind: str
    most: int
    ranks: Mapping[str, int]


class SharedCores(msgspec.Struct, frozen=True):
    """A host on which the ranks have more computing threads than cores."""

    host: str
    ranks: int
    threads: int
    cores: float


class Run(msgspec.Struct, frozen=True):
    """One run. `rate`: the comparison's unit per second; `speed_up`, `efficiency`: against the run
    with the fewest ranks."""

    run: str
    name: str
    settings: Mapping[str, str]
    ranks: int
    steps: int
    step_seconds: StepSeconds
    step_work: StepWork
    rate: float | None
    phases: Mapping[str, float | None]
    waiting: float | None
    waiting_reason: str | None
    memory: Memory | None
    memory_reason: str | None
    speed_up: Interval | None
    efficiency: float | None
    seconds_to_loss: float | None
    shared_cores: tuple[SharedCores, ...]


class LeftOut(msgspec.Struct, frozen=True):
    """A run that could not be compared, and why."""

    name: str
    reason: str


class Pair(msgspec.Struct, frozen=True):
    """A later run against the first. `time_ratio`: time of the second / time of the first for the
    same work; `usual_time_ratio`: without rare long steps."""

    first: str
    second: str
    change: Literal["faster", "slower", "no difference shown", "not known"]
    time_ratio: Interval | None
    usual_time_ratio: Interval | None
    reason: str | None

    def slower_by_more_than(self, share: float) -> bool:
        """Whether the second run certainly takes longer than the first by more than this share, as
        `compare --fail-on-regression` decides."""
        ratios = (self.time_ratio, self.usual_time_ratio)
        return any(ratio is not None and ratio.low > 1 + share for ratio in ratios)


class Scaling(msgspec.Struct, frozen=True):
    """How the work grows with the ranks, and the run that the others are compared with."""

    reference: str
    growth: str
    reason: str | None


class Best(msgspec.Struct, frozen=True):
    """The best run for its ranks, and the fastest one."""

    run: str
    fastest: str


class Point(msgspec.Struct, frozen=True):
    """The predicted step of a run with so many ranks."""

    ranks: int
    step_seconds: float
    work: float
    wait: float
    communication: float


class Law(msgspec.Struct, frozen=True):
    """How the step time of runs that differ only in their ranks depends on these."""

    runs: tuple[str, ...]
    reason: str | None
    growth: str | None
    own: float | None
    crowding: float | None
    waiting: float | None
    moving: float | None
    margin: float | None
    predicted: tuple[Point, ...]


class Comparison(Result, frozen=True, kw_only=True):
    """Runs side by side. `verdict`: one sentence; `spread`: the most by which two runs with equal
    settings differ, as a share."""

    verdict: str
    unit: Literal["samples", "tokens", "steps"]
    error_rate: float
    runs: tuple[Run, ...]
    left_out: tuple[LeftOut, ...]
    differs: tuple[str, ...]
    pairs: tuple[Pair, ...]
    scaling: Scaling
    best: Best | None
    laws: tuple[Law, ...]
    spread: float | None
    loss: float | None
    notes: tuple[str, ...]

    def make_card(self) -> Card:
        """What the short views show."""
        changes = {pair.second: pair for pair in self.pairs}
        rows = [
            (
                run.run,
                run.name,
                str(run.ranks),
                f"{1000 * run.step_seconds.mean.seconds:.4g} ms per step",
                "–" if run.rate is None else f"{run.rate:.4g} {self.unit} per second",
                changes[run.run].change if run.run in changes else "–",
            )
            for run in self.runs
        ]
        return Card(
            headline=self.verdict,
            about=f"{len(self.runs)} runs",
            columns=("run", "name", "ranks", "step", "rate", "against A"),
            rows=tuple(rows),
            notes=(
                *self.notes,
                *(f"Left out: {run.name} ({run.reason})" for run in self.left_out),
            ),
        )
