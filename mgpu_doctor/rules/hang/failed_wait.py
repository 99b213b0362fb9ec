"""Ranks stayed away from a collective until it failed, by black boxes alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.analysis.postmortem.unmet_wait import LEAST_SECONDS, UnmetWait
from mgpu_doctor.case.model import Rank
from mgpu_doctor.findings import Culprit, Evidence, Finding, Fix, Severity
from mgpu_doctor.formatting import format_ranks, format_seconds
from mgpu_doctor.rules.rule import Detector, Limits

MOST_ROWS = 4
_ACTIVITIES = {
    "input": "fetching a batch",
    "transfer": "copying a batch to its device",
    "forward": "in its forward pass",
    "backward": "in its backward pass",
    "optimizer": "in its optimizer",
    "checkpoint": "saving or loading a checkpoint",
    "evaluation": "evaluating",
}
_ELSEWHERE = "in code outside the training step"
_FIXES = {
    "input": Fix(
        "bound-the-loader",
        "Give the data loader a time limit",
        "`DataLoader(…, num_workers=2, timeout=60)` raises an error that names the worker. Check "
        "the storage and the samples that this rank reads.",
    ),
    "checkpoint": Fix(
        "see-the-storage",
        "Check the storage",
        "`df -h` and `dmesg -T` on that host: a full or lost file system blocks every writer. If "
        "saving merely takes long, set `timeout=` of `init_process_group` above that.",
    ),
}


def _find_failed_wait(measures: Measures, _: Limits) -> Iterable[Finding]:
    wait = measures.postmortem.unmet_wait
    if wait is None:
        return
    behind, waiting = _numbers(wait.behind), _numbers(wait.waiting)
    name = format_ranks(behind).capitalize()
    verb, whom = ("was", "it") if len(behind) == 1 else ("were", "them")
    site = _common_site(wait.waiting)
    activities = {_activity(rank) for rank in wait.behind}
    activity = activities.pop() if len(activities) == 1 else "busy elsewhere"
    yield Finding(
        code="hang-rank-behind",
        severity=Severity.CRITICAL,
        confidence=wait.confidence,
        title=f"{name} {verb} {activity} while {format_ranks(waiting)} waited for {whom} for "
        f"{format_seconds(wait.seconds)}{_describe_site(site)}; the wait failed",
        cause=f"{name} did not reach the collective in which the other ranks waited, and did "
        "nothing else that the probe can see in all that time. No stacks were taken before the "
        "job ended, so the line is unknown.",
        culprits=tuple(
            Culprit(rank.rank, host=rank.host, device=rank.device, pid=rank.pid)
            for rank in wait.behind
        ),
        victims=tuple(waiting),
        evidence=tuple(_rows(wait, site)),
        since_step=min(rank.now.step for rank in wait.behind if rank.now is not None),
        fixes=(*_suggest_fixes(wait.behind), _SEE_THE_LINE),
    )


_SEE_THE_LINE = Fix(
    "longer-timeout",
    "Run it again with a longer timeout to see the line",
    "With `init_process_group(…, timeout=timedelta(minutes=2))` under `mgpu-doctor run`, the hang "
    "lasts long enough for the doctor to read every rank's stack.",
)


def _suggest_fixes(behind: Iterable[Rank]) -> Iterable[Fix]:
    phases = {rank.now.phase for rank in behind if rank.now is not None}
    return (fix for phase, fix in _FIXES.items() if phase in phases)


def _rows(wait: UnmetWait, site: str | None) -> Iterable[Evidence]:
    for rank in wait.behind[:MOST_ROWS]:
        if rank.now is not None and rank.ended is not None:
            seconds = round(rank.ended - rank.now.since, 3)
            measure = f"time rank {rank.rank} was {_activity(rank)}"
            yield Evidence(measure, seconds, "s", None, "black box")
    yield Evidence(
        "longest wait that an exception ended",
        round(wait.seconds, 3),
        "s",
        wait.threshold,
        "black boxes of the waiting ranks",
        site,
    )


def _numbers(ranks: Iterable[Rank]) -> list[int]:
    return sorted(rank.rank for rank in ranks if rank.rank is not None)


def _activity(rank: Rank) -> str:
    return _ELSEWHERE if rank.now is None else _ACTIVITIES.get(rank.now.phase, _ELSEWHERE)


def _common_site(waiting: Iterable[Rank]) -> str | None:
    waits = (rank.error.wait for rank in waiting if rank.error is not None)
    sites = Counter(wait.site for wait in waits if wait is not None and wait.site)
    return sites.most_common(1)[0][0] if sites else None


def _describe_site(site: str | None) -> str:
    """` in all_reduce at train.py:87`."""
    operation, _, place = (site or "").partition(" ")
    return f" in {operation} at {place.rpartition('/')[2]}" if place else ""


FAILED_WAIT = Detector(
    _find_failed_wait,
    measured="If a collective fails before stacks could be taken, the black boxes show it, on "
    f"CPU ranks: an exception ended a wait of at least {LEAST_SECONDS:g} s and ten median steps, "
    "and the other ranks did one thing outside of any collective all that time. Nobody is named "
    "if a rank failed by itself or a rank's box is missing.",
)
"""For a job that ended before anybody looked at it."""
