"""A process group that never came together: who did not join it.

Whoever gave up waiting is a victim.
"""

from __future__ import annotations

from collections.abc import Iterable

from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.case.model import Case, Outcome, Rank, State
from mgpu_doctor.findings import Culprit, Evidence, Finding, Fix, Severity
from mgpu_doctor.rules import obituary, words
from mgpu_doctor.rules.echoes import waited_in_vain
from mgpu_doctor.rules.falls import first_falls
from mgpu_doctor.rules.rule import Rule

SEEN, GUESSED = 0.9, 0.7
"""Confidence where every missing rank's process was told of, and where one may never have been
started."""


def absentees(case: Case) -> tuple[Rank, ...]:
    """Ranks that left no sign of joining, in a failed job in which others waited for them in vain
    and nobody fell by itself."""
    if case.job.outcome is not Outcome.FAILED or not _waiters(case) or first_falls(case):
        return ()
    return tuple(rank for rank in case.ranks if rank.state is State.MISSING)


def _waiters(case: Case) -> list[Rank]:
    return [rank for rank in case.ranks if rank.error is not None and waited_in_vain(rank.error)]


def _examine(measures: Measures) -> Iterable[Finding]:
    case = measures.case
    absent = absentees(case)
    if not absent:
        return
    waiters = _waiters(case)
    who = words.ranks(rank.rank for rank in absent if rank.rank is not None)
    pids: dict[int | None, int | None] = {
        end.rank: end.pid for end in case.console.ends if end.rank is not None
    }
    told = all(pids.get(rank.rank) is not None for rank in absent)
    victims = [rank.rank for rank in waiters if rank.rank is not None]
    yield Finding(
        code="failed-rendezvous",
        severity=Severity.CRITICAL,
        confidence=SEEN if told else GUESSED,
        title=f"{who.capitalize()} never joined the process group; "
        f"{words.ranks(victims)} gave up waiting",
        cause="The process was started but never called init_process_group in time: what it did "
        "instead was not measured."
        if told
        else "Nothing shows that the process was ever started, or it could not reach the others.",
        culprits=tuple(Culprit(rank.rank, rank.host, pid=pids.get(rank.rank)) for rank in absent),
        victims=tuple(victims),
        evidence=(
            Evidence(
                "ranks that asked to join",
                len(case.ranks) - len(absent),
                "ranks",
                len(case.ranks),
                "black boxes",
            ),
            *obituary.told_of(waiters[0]),
        ),
        fixes=(
            Fix(
                "look-at-the-absent",
                f"See what {who} does before init_process_group",
                f"While it hangs, `py-spy dump --pid PID` on {who} shows the line. Usual causes: "
                "rank-dependent code before the call (a download, a lock), a WORLD_SIZE larger "
                "than the number of processes started, another MASTER_ADDR or MASTER_PORT.",
            ),
        ),
    )


RULES: tuple[Rule, ...] = (
    Rule(
        code="failed-rendezvous",
        family="failed",
        summary="Ranks never joined the process group, and the others gave up waiting for them.",
        measured="A rank's own exception says that others did not join in time, no rank fell by "
        "itself, and of some ranks of the world there is no black box: a box is opened when "
        "init_process_group is entered.",
        thresholds=f"Confidence {SEEN} where the launcher told the missing rank's pid, else "
        f"{GUESSED}: it may never have been started.",
        fixes="Look at what the missing rank does before init_process_group; check WORLD_SIZE, "
        "MASTER_ADDR and MASTER_PORT.",
        examine=_examine,
    ),
)
