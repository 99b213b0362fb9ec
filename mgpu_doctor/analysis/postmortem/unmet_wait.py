"""Collectives that failed because ranks never reached them, by black boxes alone. Pure.

A short time-out ends a hang before anybody can look at stacks. The boxes still show it: the ranks
whose exception ended a long wait, and those that did something else all that time. If all of them
waited, the calls in which they waited show whether they could ever have met.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from mgpu_doctor.analysis.postmortem.dead_rank_stall import LEAST_STEPS, median_step
from mgpu_doctor.analysis.postmortem.rank_failures import FailureKind, RankFailure
from mgpu_doctor.analysis.stacks.wait_classifier import BETWEEN_TWO
from mgpu_doctor.case.model import Case, Outcome, Rank, Wait
from mgpu_doctor.case.process_metadata import PhaseClock

LEAST_SECONDS = 2.0
"""A shorter wait that fails has lost its connection rather than its patience. A choice: the
shortest time-out that people set for a collective is some seconds."""
SAME_WAIT = 0.75
"""Share of the longest wait from which on another rank waited, or did not, all that time."""
UNCLEAR = BETWEEN_TWO | {"wait", "synchronize", "block_current_stream", "wait_tensor"}
"""Calls in which ranks may correctly wait in different places, or whose collective is unknown."""
ROUTINE = 3
"""Times that all ranks must have made a call before, for it to be part of the loop. A choice."""
CONFIDENCE, CONFIDENCE_IN_BACKWARD = 0.85, 0.7
"""The second: whether a rank waits in a backward pass is not known for every strategy."""
_WAIT, _BACKWARD = "wait", "backward"


@dataclass(frozen=True, slots=True)
class UnmetWait:
    """Ranks that waited in a collective until it failed, and those that they waited for."""

    behind: tuple[Rank, ...]
    """Each did the same thing, outside of any collective, while the others waited."""
    waiting: tuple[Rank, ...]
    seconds: float
    """The longest wait that an exception ended."""
    threshold: float
    confidence: float


@dataclass(frozen=True, slots=True)
class SplitWait:
    """Ranks that all waited until that failed, in different collectives."""

    sides: tuple[tuple[Rank, ...], ...]
    """The ranks by the call in which they waited, the largest group first."""
    sites: tuple[str | None, ...]
    """The call of each side, such as `all_reduce /home/u/train.py:22`; None: a wrapper's own."""
    seconds: float
    threshold: float
    newcomers: tuple[Rank, ...] = ()
    """The ranks of the side whose call no rank had made before, if all ranks had made the other
    side's call equally often: they left the loop, or took another branch. Empty: unknown."""

    @property
    def operations(self) -> frozenset[str | None]:
        """The names of the collectives."""
        return frozenset(site and site.partition(" ")[0] for site in self.sites)


def find_unmet_wait(failures: Iterable[RankFailure], case: Case) -> UnmetWait | None:
    """The wait that ended the job, and the ranks that never came. None: the job did not end like
    that, a rank failed by itself, or not all ranks are known well enough to name any."""
    if not _failed_in_waits(failures, case):
        return None
    lasted = _find_longest_wait(case)
    if lasted is None:
        return None
    longest, threshold = lasted
    waiting = tuple(rank for rank in case.ranks if _waited(rank) >= SAME_WAIT * longest)
    others = tuple(rank for rank in case.ranks if rank not in waiting)
    if not others or not all(_stayed_away(rank, SAME_WAIT * longest) for rank in others):
        return None
    in_backward = [rank for rank in others if rank.now is not None and rank.now.phase == _BACKWARD]
    if in_backward and len(others) > 1:
        return None  # some of them may have waited, too
    confidence = CONFIDENCE_IN_BACKWARD if in_backward else CONFIDENCE
    return UnmetWait(others, waiting, longest, threshold, confidence)


def find_split_wait(failures: Iterable[RankFailure], case: Case) -> SplitWait | None:
    """The different collectives in which all ranks waited until the job failed. None: they waited
    in the same, not all of them waited, or one is in a call of two ranks or an unknown one."""
    lasted = _find_longest_wait(case) if _failed_in_waits(failures, case) else None
    if lasted is None or any(_waited(rank) < SAME_WAIT * lasted[0] for rank in case.ranks):
        return None
    sides: dict[str | None, list[Rank]] = {}
    for rank in case.ranks:
        wait = _failed_wait(rank)
        site = wait.site if wait is not None else rank.now.site if rank.now is not None else None
        sides.setdefault(site, []).append(rank)
    operations = {site.partition(" ")[0] for site in sides if site is not None}
    if len(sides) < 2 or operations & UNCLEAR:
        return None
    ordered = sorted(sides.items(), key=lambda side: -len(side[1]))
    by_size = tuple(tuple(ranks) for _, ranks in ordered)
    sites = tuple(site for site, _ in ordered)
    return SplitWait(
        sides=by_size,
        sites=sites,
        seconds=lasted[0],
        threshold=lasted[1],
        newcomers=_find_newcomers(by_size, sites),
    )


def _find_newcomers(
    sides: tuple[tuple[Rank, ...], ...], sites: tuple[str | None, ...]
) -> tuple[Rank, ...]:
    """The side that is in a call which no rank had made before. A larger side is none: more ranks
    say that its call is right."""
    if len(sides) != 2 or None in sites:
        return ()
    for novel, routine in ((1, 0), (0, 1)):
        made = [_times_called(rank, sites[routine]) for rank in sides[novel]]
        expected = [_times_called(rank, sites[routine]) - 1 for rank in sides[routine]]
        first = all(_times_called(rank, sites[novel]) == 1 for rank in sides[novel])
        alone = not any(_times_called(rank, sites[novel]) for rank in sides[routine])
        lockstep = len({*made, *expected}) == 1 and made[0] >= ROUTINE
        if first and alone and lockstep and len(sides[novel]) <= len(sides[routine]):
            return sides[novel]
    return ()


def _times_called(rank: Rank, site: str | None) -> int:
    """How often the rank called a collective at one place, the call that failed included."""
    calls = rank.metadata.calls
    return next((call.count for call in calls if f"{call.name} {call.site}" == site), 0)


def _failed_in_waits(failures: Iterable[RankFailure], case: Case) -> bool:
    """Whether the job failed, and no rank by itself."""
    return (
        case.job.outcome is Outcome.FAILED
        and _are_known(case)
        and all(failure.kind is FailureKind.SECONDARY for failure in failures)
    )


def _find_longest_wait(case: Case) -> tuple[float, float] | None:
    """Seconds of the longest wait that an exception ended, and of the shortest that counts; None:
    none lasted as long."""
    longest = max((wait.seconds for rank in case.ranks if (wait := _failed_wait(rank))), default=0)
    threshold = max(LEAST_SECONDS, LEAST_STEPS * (median_step(case.ranks) or 0.0))
    return (longest, threshold) if longest >= threshold else None


def _are_known(case: Case) -> bool:
    """Whether every rank of the job is here with what it did last, timed by its host's clock: on a
    GPU the host does not wait where its device does."""
    return len(case.ranks) == case.job.world_size and all(
        rank.rank is not None
        and rank.now is not None
        and rank.ended is not None
        and rank.metadata.clock is PhaseClock.CPU
        for rank in case.ranks
    )


def _failed_wait(rank: Rank) -> Wait | None:
    return None if rank.error is None else rank.error.wait


def _waited(rank: Rank) -> float:
    """Seconds of the wait in which the rank ended, by an exception or by a signal."""
    wait = _failed_wait(rank)
    if wait is not None:
        return wait.seconds
    if rank.now is None or rank.ended is None or rank.now.phase != _WAIT:
        return 0.0
    return rank.ended - rank.now.since


def _stayed_away(rank: Rank, seconds: float) -> bool:
    """Whether the rank did one thing for so long before it ended, and waited for no rank."""
    if rank.error is not None or rank.now is None or rank.ended is None:
        return False
    return rank.now.phase != _WAIT and rank.ended - rank.now.since >= seconds
