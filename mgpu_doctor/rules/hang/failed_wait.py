"""Collectives that ranks never reached, or in which all waited apart, until they failed: by black
boxes alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.analysis.postmortem.unmet_wait import LEAST_SECONDS, SplitWait, UnmetWait
from mgpu_doctor.case.model import Rank
from mgpu_doctor.findings import Culprit, Evidence, Finding, Fix, Severity
from mgpu_doctor.formatting import format_ranks, format_seconds
from mgpu_doctor.rules.hang.split_hang import MOST_SIDES, SAME_COLLECTIVES
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
    stacks = (
        "The stacks that were taken do not decide where it was,"
        if measures.case.job_snapshots
        else "No stacks were taken before the job ended,"
    )
    yield Finding(
        code="hang-rank-behind",
        severity=Severity.CRITICAL,
        confidence=wait.confidence,
        title=f"{name} {verb} {activity} while {format_ranks(waiting)} waited for {whom} for "
        f"{format_seconds(wait.seconds)}{_describe_site(site)}; the wait failed",
        cause=f"{name} did not reach the collective in which the other ranks waited, and did "
        f"nothing else that the probe can see in all that time. {stacks} so the line is unknown.",
        culprits=tuple(map(_culprit, wait.behind)),
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
    yield _longest_row(wait.seconds, wait.threshold, site)


def _longest_row(seconds: float, threshold: float, site: str | None) -> Evidence:
    measure = "longest wait that an exception ended"
    source = "black boxes of the waiting ranks"
    return Evidence(measure, round(seconds, 3), "s", threshold, source, site)


def _culprit(rank: Rank) -> Culprit:
    return Culprit(rank.rank, host=rank.host, device=rank.device, pid=rank.pid)


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


def _find_split_wait(measures: Measures, _: Limits) -> Iterable[Finding]:
    wait = measures.postmortem.split_wait
    if wait is None:
        return
    numbers = [_numbers(side) for side in wait.sides]
    places = [
        _describe_site(site) or " in a wrapper such as DistributedDataParallel"
        for site in wait.sites
    ]
    is_mismatch = len(wait.operations) > 1
    odd = wait.sides[1] if is_mismatch and measures.is_flat and _is_odd_one_out(wait) else ()
    newcomers = wait.newcomers if measures.is_flat else ()
    if odd:
        title = f"Rank {odd[0].rank} waited{places[1]}, all others{places[0]}"
    else:
        sides = (f"{format_ranks(n)}{at}" for n, at in zip(numbers, places, strict=True))
        title = f"The ranks waited in different places: {'; '.join(list(sides)[:MOST_SIDES])}"
    yield Finding(
        code="hang-collective-mismatch",
        severity=Severity.CRITICAL if is_mismatch else Severity.WARNING,
        confidence=0.6 if is_mismatch else 0.45,
        title=f"{title}, for {format_seconds(wait.seconds)}; the wait failed",
        cause="Every rank was in a collective that the others did not call, so they waited for "
        "each other. Usually a branch that depends on the rank, its data or its loss makes some "
        f"ranks skip a collective or call a different one.{_describe_newcomers(newcomers)}",
        culprits=tuple(map(_culprit, odd or newcomers)),
        victims=tuple(n for side in numbers for n in side if n not in _numbers(odd or newcomers)),
        evidence=(
            *[
                Evidence(format_ranks(n), f"waited{at}", "text", None, "black boxes", site)
                for n, at, site in zip(numbers, places, wait.sites, strict=True)
            ][:MOST_ROWS],
            _longest_row(wait.seconds, wait.threshold, None),
        ),
        fixes=(SAME_COLLECTIVES,),
    )


def _describe_newcomers(newcomers: Sequence[Rank]) -> str:
    """What sets these ranks apart; begins with a space."""
    if not newcomers:
        return ""
    return (
        f" No rank had made the call of {format_ranks(_numbers(newcomers))} before; all had made "
        "the other one equally often. So it left the loop early (its data ended) or took a branch."
    )


def _is_odd_one_out(wait: SplitWait) -> bool:
    """Whether one rank waited in another collective than at least two that agree."""
    return len(wait.sides) == 2 and len(wait.sides[0]) > 1 == len(wait.sides[1])


SPLIT_WAIT = Detector(
    _find_split_wait,
    measured="If all ranks waited until their collectives failed, and no stacks were taken, the "
    "black boxes show in which call each of them was, on CPU ranks.",
)
"""For a job that ended before anybody looked at it."""

FAILED_WAIT = Detector(
    _find_failed_wait,
    measured="If a collective fails before stacks could be taken, the black boxes show it, on CPU "
    f"ranks: an exception ended a wait of at least {LEAST_SECONDS:g} s and ten median steps, and "
    "the other ranks did one thing outside of any collective all that time. No rank is named if a "
    "rank failed by itself or a rank's box is missing.",
)
"""For a job that ended before anybody looked at it."""
