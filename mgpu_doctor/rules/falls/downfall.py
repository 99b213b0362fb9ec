"""A rank's fall that has a more specific reason than the signal or exception that it ended by."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.case.endings import LimitedProcess
from mgpu_doctor.case.model import Case
from mgpu_doctor.findings import Evidence, Finding, Fix, Severity
from mgpu_doctor.rules.falls import obituary
from mgpu_doctor.rules.falls.fallen import fallen
from mgpu_doctor.rules.falls.falls import Fall
from mgpu_doctor.rules.falls.first import victims_of
from mgpu_doctor.rules.falls.relatives import ending_of, last_seen
from mgpu_doctor.rules.rule import Limits, Rule

REPLACED = ("failed-exception", "failed-signal", "failed-killed", "failed-dataloader-worker")
ERRNO = "The exception of the rank that fell first (or of its worker) holds the system's error "


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a rank fell. `title` follows its name; `confidence` is that of this reason alone."""

    confidence: float
    title: str
    cause: str
    fixes: tuple[Fix, ...]
    evidence: tuple[Evidence, ...] = ()


def examine_for(
    code: str, reason_of: Callable[[Fall, Case], Reason | None]
) -> Callable[[Measures, Limits], Iterable[Finding]]:
    def examine(measures: Measures, _: Limits) -> Iterable[Finding]:
        case = measures.case
        culprits = fallen(case)
        reasons = [(fall, reason_of(fall, case)) for fall in culprits]
        found = [(fall, reason) for fall, reason in reasons if reason is not None]
        if not found or found[0][0] is not culprits[0]:
            return
        first, reason = found[0]
        guilty = tuple(fall for fall, _ in found)
        yield Finding(
            code=code,
            severity=Severity.CRITICAL,
            confidence=min(first.confidence, reason.confidence),
            title=f"{obituary.who(guilty, case)} {reason.title}",
            cause=reason.cause,
            culprits=obituary.culprits_of(guilty),
            victims=() if first.everyone else victims_of(case, guilty),
            evidence=(*reason.evidence, *obituary.evidence_of(first, case)),
            since_step=first.last_step,
            fixes=reason.fixes,
        )

    return examine


def rule(
    code: str,
    reason_of: Callable[[Fall, Case], Reason | None],
    *,
    summary: str,
    measured: str,
    thresholds: str,
    fixes: str,
    family: str = "failed",
) -> Rule:
    return Rule(
        code=code,
        family=family,
        summary=summary,
        measured=measured,
        thresholds=thresholds,
        fixes=fixes,
        examine=examine_for(code, reason_of),
        replaces=REPLACED,
    )


def process_of(fall: Fall, case: Case) -> LimitedProcess | None:
    ending = ending_of(fall, case)
    return ending.processes.get(fall.pid) if ending is not None and fall.pid is not None else None


def cpu_seconds(fall: Fall, case: Case) -> float | None:
    sample = last_seen(case, fall.host, fall.at)
    seen = sample.processes.get(fall.pid) if sample is not None and fall.pid is not None else None
    return seen[0] if seen is not None else None
