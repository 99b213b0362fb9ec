"""A process that is no rank and whose end the ranks did not survive: a parameter server of
TensorFlow, a store, a launcher's helper. Pure."""

from __future__ import annotations

import signal
from collections.abc import Sequence

from mgpu_doctor.analysis.postmortem.rank_failures import RankFailure
from mgpu_doctor.case.model import Case, ProcessEnd
from mgpu_doctor.findings import Culprit, Evidence, Finding, Fix, Severity
from mgpu_doctor.formatting import format_signal
from mgpu_doctor.rules.failures import failure_text

DEADLY = (signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL)
"""Signals that nobody sends to a helper whose work is done, as SIGPIPE in a shell's pipe."""


def before(echoes: Sequence[RankFailure], case: Case) -> ProcessEnd | None:
    """Returns the job's first process that was killed or crashed in the minute before any rank
    failed. None if there is none, if it is unknown when the ranks failed, or if the job outlived
    such an end earlier, as a job does that ends its helpers by SIGKILL. Data-loader workers do not
    count: their rank fails by itself."""
    times = [failure.at for failure in echoes if failure.at is not None]
    if not times or len(times) < len(echoes):
        return None
    ranks = {rank.pid for rank in (*case.ranks, *case.earlier)}
    ends = [
        end
        for end in case.ends
        if end.pid not in ranks and end.signal in DEADLY and end.at < min(times)
    ]
    first = min(ends, key=lambda end: end.at, default=None)
    if first is None or min(times) - first.at > failure_text.BEFORE_DEATH:
        return None
    return first


def finding(end: ProcessEnd, echoes: Sequence[RankFailure], case: Case) -> Finding:
    name = format_signal(end.signal or 0)
    host = case.job.hosts[0] if len(case.job.hosts) == 1 else None
    first = min(failure.at for failure in echoes if failure.at is not None)
    return Finding(
        code="failed-killed",
        severity=Severity.CRITICAL,
        confidence=0.8,
        title=f"A process of the job that is no rank was ended by {name}, and the ranks with it",
        cause=f"Process {end.pid} ended by {name}; after it the ranks lost a connection, or the "
        "launcher ended them. Parameter servers, stores and helpers of launchers are such "
        "processes.",
        culprits=(Culprit(None, host=host, pid=end.pid),),
        victims=tuple(sorted(failure.rank for failure in echoes if failure.rank is not None)),
        evidence=(
            Evidence("signal", name, "signal", source="exit status"),
            Evidence(
                "before the first rank failed", round(first - end.at, 3), "s", source="exit status"
            ),
            *_said(case),
        ),
        fixes=(
            Fix(
                "who-killed",
                "Find out what that process was, and who sent the signal",
                "`dmesg -T | grep -iE 'out of memory|killed process'` (or `journalctl -k`) names "
                "the OOM killer's victims with their pids; what the launcher printed tells what "
                "it was.",
            ),
        ),
    )


def _said(case: Case) -> tuple[Evidence, ...]:
    printed = failure_text.printed_before(case)
    evidence = Evidence("last lines that the job printed", printed, "text", source="console")
    return (evidence,) if printed else ()
