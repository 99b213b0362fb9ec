"""A failure with a more specific reason than the signal or exception that ended the rank."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.analysis.postmortem.child_processes import ending_of, last_seen
from mgpu_doctor.analysis.postmortem.failure_order import list_victims
from mgpu_doctor.analysis.postmortem.rank_failures import RankFailure
from mgpu_doctor.case.ending_records import LimitedProcess
from mgpu_doctor.case.model import Case
from mgpu_doctor.findings import Evidence, Finding, Fix, Severity
from mgpu_doctor.rules.failures import failure_text
from mgpu_doctor.rules.failures.log_rules import log_detector
from mgpu_doctor.rules.gpu.xid_evidence import XIDS_OF_ENDS
from mgpu_doctor.rules.rule import Limits, Rule

REPLACED = ("failed-exception", "failed-signal", "failed-killed", "failed-dataloader-worker")
ERRNO = "The exception of the rank that failed first (or of its worker) holds the system's error "


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a rank failed. `title` follows its name; `confidence` is that of this reason alone."""

    confidence: float
    title: str
    cause: str
    fixes: tuple[Fix, ...]
    evidence: tuple[Evidence, ...] = ()


def examine_for(
    code: str, reason_of: Callable[[RankFailure, Case], Reason | None]
) -> Callable[[Measures, Limits], Iterable[Finding]]:
    def examine(measures: Measures, _: Limits) -> Iterable[Finding]:
        case = measures.case
        for event in measures.postmortem.events:
            reasons = [(failure, reason_of(failure, case)) for failure in event]
            rank_failures = [(failure, reason) for failure, reason in reasons if reason is not None]
            if not rank_failures or rank_failures[0][0] is not event[0]:
                continue
            first, reason = rank_failures[0]
            guilty = tuple(failure for failure, _ in rank_failures)
            yield Finding(
                code=code,
                severity=Severity.CRITICAL,
                confidence=min(first.confidence, reason.confidence),
                title=f"{failure_text.who(guilty, case)} {reason.title}",
                cause=reason.cause,
                culprits=failure_text.culprits_of(guilty),
                victims=() if first.everyone else list_victims(case, guilty),
                evidence=(*reason.evidence, *failure_text.evidence_of(first, case)),
                since_step=first.last_step,
                fixes=reason.fixes,
            )

    return examine


def rule(
    code: str,
    reason_of: Callable[[RankFailure, Case], Reason | None],
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
        alternatives=(log_detector(code), *((XIDS_OF_ENDS,) if family == "failed" else ())),
        replaces=REPLACED,
    )


def process_of(failure: RankFailure, case: Case) -> LimitedProcess | None:
    ending = ending_of(failure, case)
    return (
        ending.processes.get(failure.pid)
        if ending is not None and failure.pid is not None
        else None
    )


def cpu_seconds(failure: RankFailure, case: Case) -> float | None:
    sample = last_seen(case, failure.host, failure.at)
    seen = (
        sample.processes.get(failure.pid)
        if sample is not None and failure.pid is not None
        else None
    )
    return seen[0] if seen is not None else None
