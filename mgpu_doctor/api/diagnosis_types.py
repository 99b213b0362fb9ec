"""A diagnosis as typed, frozen data: the object of docs/diagnosis.schema.json, key by key.

Seconds, bytes and fractions from 0 to 1; None: unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from mgpu_doctor.api.notebook_views import Card, Result
from mgpu_doctor.formatting import format_ranks

Number = float | int | str | None


class Subject(msgspec.Struct, frozen=True):
    """What was examined."""

    kind: Literal["process", "recording", "log", "trace", "command", "machine"]
    ref: str


class Saved(msgspec.Struct, frozen=True):
    """The share of the step time that treatments save, and its interval; below 0 they cost it."""

    step_fraction: float
    low: float
    high: float


class Proof(msgspec.Struct, frozen=True):
    """What trials of treatments showed. `values`: each treatment and its value."""

    values: dict[str, bool | int]
    verdict: str | None
    saved: Saved | None


class Job(msgspec.Struct, frozen=True):
    """The training job. `started` and `ended`: seconds since the epoch. `treated`: the treatments
    that it was started with."""

    id: str
    framework: str | None
    strategy: str | None
    launcher: str | None
    world_size: int | None
    hosts: tuple[str, ...]
    started: float | None
    ended: float | None
    outcome: Literal["running", "completed", "failed", "hung", "killed", "unknown"]
    exit_code: int | None
    treated: Proof | None = None


class BusyWaiting(msgspec.Struct, frozen=True):
    """A GPU that is busy while its rank waits: its share of busy time, and of waiting in that."""

    gpu: int
    utilization: float
    waiting: float
    waits_for: int | None


class Rank(msgspec.Struct, frozen=True):
    """One rank. `phases`: median seconds per step by the phase's name."""

    rank: int | None
    host: str
    pid: int | None
    device: str | None
    state: Literal["running", "waiting", "hung", "exited", "dead", "missing"]
    exit_code: int | None
    signal: int | None
    last_step: int | None
    step_seconds_median: float | None
    phases: Mapping[str, float | None]
    where: str | None
    clock: str | None = None
    run_ahead_seconds: float | None = None
    run_ahead_seconds_most: float | None = None
    bound_by: str | None = None
    busy_waiting: BusyWaiting | None = None
    unseen_waits: str | None = None
    still_seconds: float | None = None


class Culprit(msgspec.Struct, frozen=True):
    """Who causes a finding. A rank that never started has no pid."""

    rank: int | None
    host: str | None
    device: str | None
    pid: int | None


class Evidence(msgspec.Struct, frozen=True):
    """One measured fact. `value` and `baseline` share `unit`."""

    measure: str
    value: Number
    unit: str
    baseline: Number
    source: str
    where: str | None


class Cost(msgspec.Struct, frozen=True):
    """What a finding costs. `step_fraction`: share of the step time."""

    step_fraction: float | None
    seconds_per_step: float | None
    bytes: int | None


class Predicted(msgspec.Struct, frozen=True):
    """What a fix is expected to do. `step_time_ratio`: step time after / before; `basis`: how this
    is known."""

    step_time_ratio: float | None
    memory_bytes: int | None
    basis: str


class Fix(msgspec.Struct, frozen=True):
    """A fix in one line, and what to type or change. `treatment`: the name under which
    `mgpu-doctor treat` tries it; `tried`: what its trials showed."""

    id: str
    summary: str
    how: str
    predicted: Predicted | None
    treatment: str | None = None
    tried: tuple[Proof, ...] = ()


class Finding(msgspec.Struct, frozen=True):
    """What is wrong. `code`: its name, which `mgpu-doctor explain CODE` explains; `victims`: the
    ranks that only wait for the culprits; `since_step`: the first step that shows it; `ruled_out`
    and `not_measured`: causes that explain too little, and causes that could not be examined."""

    code: str
    severity: Literal["critical", "warning", "info"]
    confidence: float
    title: str
    culprits: tuple[Culprit, ...]
    victims: tuple[int, ...]
    cause: str
    evidence: tuple[Evidence, ...]
    since_step: int | None
    cost: Cost
    fixes: tuple[Fix, ...]
    ruled_out: tuple[str, ...] = ()
    not_measured: tuple[str, ...] = ()

    @property
    def ranks(self) -> tuple[int, ...]:
        """The culprits' ranks, as far as they are known."""
        return tuple(culprit.rank for culprit in self.culprits if culprit.rank is not None)

    @property
    def gain(self) -> Predicted | None:
        """What the first fix with a prediction is expected to do; None: nothing is predicted."""
        return next((fix.predicted for fix in self.fixes if fix.predicted is not None), None)


class Unexamined(msgspec.Struct, frozen=True):
    """What could not be examined, why, and how to make it visible."""

    probe: str
    reason: str
    remedy: str


class Branch(msgspec.Struct, frozen=True):
    """A branch of the tree of all ranks' stacks. `depth`: how far below the root it begins."""

    depth: int
    ranks: tuple[int, ...]
    processes: int
    calls: tuple[str, ...]
    doing: str | None
    operation: str | None
    culprit: bool


class Diagnosis(Result, frozen=True, kw_only=True):
    """What is wrong with a job. Findings are in order: what stops the job first, then what costs
    most."""

    subject: Subject
    job: Job
    ranks: tuple[Rank, ...]
    coverage: float | None
    findings: tuple[Finding, ...]
    unexamined: tuple[Unexamined, ...]
    observed: float | None = None
    coverage_reason: str | None = None
    step_seconds: float | None = None
    ideal_step_seconds: float | None = None
    waste_fraction: float | None = None
    stacks: tuple[Branch, ...] = ()

    @property
    def exit_code(self) -> int:
        """Exit code of `mgpu-doctor diagnose`: 1 if a finding is at warning or worse, else 0."""
        return int(any(finding.severity != "info" for finding in self.findings))

    def find(self, code: str) -> Finding | None:
        """The first finding with this code; None: there is none."""
        return next((finding for finding in self.findings if finding.code == code), None)

    def make_card(self) -> Card:
        """What the short views show."""
        job = self.job
        count = job.world_size or len(self.ranks)
        size = f"{count} ranks" if count else "unknown size"
        about = [job.framework, job.strategy, size, job.outcome]
        rows = [
            (
                finding.severity,
                finding.code,
                format_ranks(finding.ranks) if finding.ranks else "–",
                finding.title,
                finding.fixes[0].summary if finding.fixes else "–",
                _format_gain(finding.gain),
            )
            for finding in self.findings
        ]
        return Card(
            headline=self.findings[0].title if self.exit_code else "No warning or worse",
            about=", ".join(part for part in about if part),
            columns=("severity", "code", "ranks", "finding", "fix", "gain"),
            rows=tuple(rows),
            notes=tuple(f"Not examined: {gap.probe} ({gap.reason})" for gap in self.unexamined),
        )


def _format_gain(predicted: Predicted | None) -> str:
    if predicted is None or predicted.step_time_ratio is None:
        return "–"
    return f"{100 * (1 - predicted.step_time_ratio):.0f} % less time per step"
