"""Findings and the diagnosis: what rules produce and views show. Frozen, JSON-shaped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from mgpu_doctor.case.model import Case, Unexamined


class Severity(str, Enum):
    """critical: the job is stopped, failing or about to. warning: it costs at least 5 % of total
    time, memory will run out, or training or hardware is defective. info: worth knowing."""

    CRITICAL = "critical"
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True, slots=True)
class Culprit:
    rank: int | None
    host: str | None = None
    device: str | None = None
    pid: int | None = None


@dataclass(frozen=True, slots=True)
class Evidence:
    """One measured fact. `value` and `baseline` share `unit` (SI, or a word such as "steps")."""

    measure: str
    value: float | int | str | None
    unit: str
    baseline: float | int | str | None = None
    source: str = ""
    where: str | None = None


@dataclass(frozen=True, slots=True)
class Cost:
    """What the finding costs; None: unknown. `step_fraction` is the share of step time (0..1)
    that mending it would save."""

    step_fraction: float | None = None
    seconds_per_step: float | None = None
    bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Predicted:
    """What a fix is expected to do. `step_time_ratio`: step time after / before."""

    step_time_ratio: float | None
    memory_bytes: int | None
    basis: str
    """measured what-if, formula or simulation, and its margin."""


@dataclass(frozen=True, slots=True)
class Fix:
    """`summary` is one line; `how` says what to type or change for the framework at hand."""

    id: str
    summary: str
    how: str
    predicted: Predicted | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    code: str
    severity: Severity
    confidence: float
    title: str
    cause: str
    culprits: tuple[Culprit, ...] = ()
    victims: tuple[int, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    since_step: int | None = None
    cost: Cost = Cost()
    fixes: tuple[Fix, ...] = ()


@dataclass(frozen=True, slots=True)
class RankSummary:
    """A rank as the diagnosis shows it. `phases`: median seconds a step, after `wait` was split
    into `wait` and `communication` by comparing ranks; None: not measured."""

    rank: int | None
    host: str
    pid: int | None
    device: str | None
    state: str
    exit_code: int | None
    signal: int | None
    last_step: int | None
    step_seconds_median: float | None
    phases: Mapping[str, float | None]
    where: str | None


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The answer. `findings` are ordered: what stops the job first, then what costs most."""

    case: Case
    ranks: tuple[RankSummary, ...]
    coverage: float | None
    coverage_reason: str | None
    """Why coverage is None."""
    findings: tuple[Finding, ...]
    unexamined: tuple[Unexamined, ...]
    step_seconds: float | None = None
    """Mean seconds a step of the whole job."""
