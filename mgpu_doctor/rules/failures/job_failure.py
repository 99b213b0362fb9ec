"""What ended the job: the first rank that failed by itself, and how."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.analysis.postmortem.failure_order import list_victims
from mgpu_doctor.analysis.postmortem.log_verdict import LogCause
from mgpu_doctor.analysis.postmortem.rank_failures import FailureKind, RankFailure
from mgpu_doctor.analysis.postmortem.unexplained_failures import SOON_AFTER
from mgpu_doctor.case.model import Case, Outcome
from mgpu_doctor.findings import Finding, Severity
from mgpu_doctor.formatting import format_share
from mgpu_doctor.rules.failures import failure_fixes, failure_text
from mgpu_doctor.rules.failures.log_rules import log_detector
from mgpu_doctor.rules.failures.unexplained_failure import (
    find_killed_helper,
    find_unexplained_failure,
)
from mgpu_doctor.rules.gpu.xid_evidence import XIDS_OF_ENDS
from mgpu_doctor.rules.rule import Limits, Rule

CODES = {
    FailureKind.EXCEPTION: "failed-exception",
    FailureKind.EXIT: "failed-exception",
    FailureKind.KILLED: "failed-killed",
    FailureKind.VANISHED: "failed-killed",
    FailureKind.SECONDARY: "failed-killed",  # a lone SIGTERM before all others
    FailureKind.SIGNAL: "failed-signal",
}


def _examine(code: str) -> Callable[[Measures, Limits], Iterable[Finding]]:
    def examine(measures: Measures, _: Limits) -> Iterable[Finding]:
        fatal = measures.postmortem.fatal_log_cause
        for finding in _find(code, measures):
            if fatal is None or fatal.code == code or _blames_others(finding, fatal):
                yield finding

    return examine


def _find(code: str, measures: Measures) -> Iterable[Finding]:
    case = measures.case
    if events := measures.postmortem.events:
        for event in events:
            if CODES[event[0].kind] == code:
                yield _finding(code, event, case)
    elif (
        case.job.outcome is Outcome.FAILED
        and not measures.postmortem.first
        and not measures.postmortem.absent
        and not measures.postmortem.unjoined_hosts
    ):
        if code == "failed-killed":
            yield from find_killed_helper(measures)
        elif code == "failed-exception" and measures.postmortem.killed_helper is None:
            yield from find_unexplained_failure(measures)


def _blames_others(finding: Finding, fatal: LogCause) -> bool:
    """Whether to keep this finding: it names culprits whose failure the console does not explain. A
    finding without a culprit says that no rank shows why, which is wrong if the console does."""
    explained = {failure.rank for failure in fatal.explained}
    accused = {culprit.rank for culprit in finding.culprits}
    return bool(accused) and not accused <= explained


def _finding(code: str, culprits: tuple[RankFailure, ...], case: Case) -> Finding:
    first = culprits[0]
    return Finding(
        code=code,
        severity=Severity.CRITICAL,
        confidence=first.confidence,
        title=f"{failure_text.who(culprits, case)} {failure_text.death(first)}",
        cause=failure_text.cause_of(first, case),
        culprits=failure_text.culprits_of(culprits),
        victims=() if first.everyone else list_victims(case, culprits),
        evidence=failure_text.evidence_of(first, case),
        since_step=first.last_step,
        fixes=failure_fixes.fixes_of(first, case.job),
    )


_FIRST = (
    "Failures are merged from exit statuses seen from outside, the ranks' black boxes and the "
    "console (torchrun's summary, mp.spawn, tracebacks). A rank that lost its connection, or to "
    "which the launcher sent SIGTERM, failed only because of another one. Of the other failures "
    "the earliest is named, even if the launcher calls another one the root cause. torchrun lists "
    "the processes to which it sends a signal: a rank that another sender ended is named. If all "
    "failed ranks lost their connection and one had exited with code 0 before, that one exited too "
    "early. A job that was asked to end has no culprit. Of ranks without a process group, each "
    "that failed is reported."
)
_CONFIDENCE = (
    "Confidence by source: the rank's own record 0.99, its exit status 0.97, the console alone "
    "0.8, an exception without a traceback at the end of a log 0.6, a process that vanished "
    "without any of them 0.6."
)

RULES: tuple[Rule, ...] = (
    Rule(
        code="failed-exception",
        family="failed",
        summary="A rank raised an uncaught exception, or exited with a code other than 0, and the "
        "job failed.",
        measured=_FIRST,
        thresholds=_CONFIDENCE,
        fixes="Fix the line it names; the ranks that lost their connection need no change.",
        examine=_examine("failed-exception"),
        alternatives=(log_detector("failed-exception"), XIDS_OF_ENDS),
    ),
    Rule(
        code="failed-killed",
        family="failed",
        summary="A rank was killed from outside, and the job failed.",
        measured=_FIRST + " A rank that vanished without exit code and exception counts as killed. "
        "If ranks failed only because of others, a process of the job that is not a rank and was "
        f"killed or crashed in the {SOON_AFTER:.0f} s before is reported.",
        thresholds=f"{_CONFIDENCE} Host memory at or above "
        f"{format_share(failure_text.FULL_MEMORY)} in the {failure_text.BEFORE_DEATH:.0f} s before "
        "points to the OOM killer (earlyoom and systemd-oomd act at 90 to 95 %).",
        fixes="Find out who sent the signal (`dmesg -T`, the scheduler's log); use less memory.",
        examine=_examine("failed-killed"),
        alternatives=(log_detector("failed-killed"), XIDS_OF_ENDS),
    ),
    Rule(
        code="failed-signal",
        family="failed",
        summary="A rank crashed (SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL), and the job failed.",
        measured=_FIRST,
        thresholds=_CONFIDENCE,
        fixes="Find the line: `PYTHONFAULTHANDLER=1`, a core dump; check versions and /dev/shm.",
        examine=_examine("failed-signal"),
        alternatives=(log_detector("failed-signal"), XIDS_OF_ENDS),
    ),
)
