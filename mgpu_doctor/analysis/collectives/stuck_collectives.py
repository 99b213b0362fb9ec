"""A blocked job whose collectives match: ranks that never arrived, or wait in a ring. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from mgpu_doctor.analysis.collectives.call_patterns import is_habit, last_known_step
from mgpu_doctor.analysis.collectives.collective_mismatch import (
    agreed,
    common,
    keys_of,
    left_habits,
    traced,
)
from mgpu_doctor.analysis.collectives.collective_waits import (
    LEAST_WAIT,
    Wait,
    find_awaited_ranks,
    find_cycle,
)
from mgpu_doctor.analysis.collectives.divergence import Divergence, Kind
from mgpu_doctor.analysis.collectives.process_groups import GroupCalls
from mgpu_doctor.case.flight_records import Flight


def in_ring(waits: Sequence[Wait]) -> Divergence | None:
    """Ranks that wait for each other in a ring: no order of their calls can end it."""
    ring = find_cycle(waits)
    if not ring or any(wait.at_most is not None and wait.at_most < LEAST_WAIT for wait in ring):
        return None
    first = min(ring, key=lambda wait: wait.entry.created or 0.0)
    divergence = replace(
        _of(first, Kind.DEADLOCK, (), ring, waits),
        deviating={wait.rank: wait.entry for wait in ring},
        expecting=(),
        members=tuple(sorted({wait.rank for wait in ring})),
        is_blocked=all(wait.timed_out or wait.at_most is not None for wait in ring),
    )
    steps = {wait.rank: last_known_step(_flight(wait), wait.entry) for wait in ring}
    strayed = {rank: step for rank, step in steps.items() if step is not None and step.strays}
    if not strayed or None in steps.values():
        return divergence
    return replace(
        divergence,
        expected=next(iter(strayed.values())).usual,
        deviating={**divergence.deviating, **{rank: step.called for rank, step in strayed.items()}},
        culprits=tuple(sorted(strayed)),
        by_routine=True,
    )


def _flight(wait: Wait) -> Flight:
    return wait.group_calls.by_rank[wait.rank].flight


def behind(waits: Sequence[Wait]) -> Divergence | None:
    """Ranks that others wait for, and that are in no collective themselves."""
    ends = set(find_awaited_ranks(waits))
    ending = [wait for wait in waits if ends & set(wait.lacking)]
    if not ending:
        return None
    first = min(ending, key=lambda wait: wait.entry.created or 0.0)
    group_calls, sequence = first.group_calls, first.sequence
    there = [
        wait for wait in ending if wait.group_calls is group_calls and wait.sequence == sequence
    ]
    culprits = tuple(sorted(ends & set(first.lacking)))
    if not _lasts(there, group_calls, culprits):
        return None
    margin = len(group_calls.members) - 2 * len(culprits)
    decided = margin > 0 or (margin == 0 and _expected(first))
    if any(group_calls.by_rank[rank].flight.unseen for rank in culprits):
        decided = False  # it may be in a receive, which is not recorded
    divergence = _of(first, Kind.BEHIND if decided else Kind.AHEAD, culprits, there, waits)
    divergence = replace(
        divergence, culprits=culprits if decided else (), by_routine=decided and not margin
    )
    waiting = tuple(wait.rank for wait in there)
    for few_ranks, most in ((culprits, waiting), (waiting, culprits)):
        if 2 * len(most) > len(group_calls.members):
            origin = traced(replace(divergence, culprits=few_ranks), group_calls, few_ranks, most)
            return divergence if origin.kind in (Kind.AHEAD, Kind.BEHIND) else origin
    if not margin:
        origin = traced(divergence, group_calls, culprits, waiting)
        left = origin.kind is Kind.SKIPPED and left_habits(culprits, waiting, group_calls)
        if origin.kind in (Kind.SKIPPED, Kind.EXTRA):
            return replace(origin, culprits=culprits if left else (), by_routine=left)
    return divergence


def undumped(groups: Iterable[GroupCalls], waits: Sequence[Wait]) -> Divergence | None:
    """A divergence by the ranks without a dump, if all others wait in one collective."""
    for group_calls in groups:
        inside = [wait for wait in waits if wait.group_calls is group_calls]
        together = len({wait.sequence for wait in inside}) == 1
        if (
            group_calls.missing
            and group_calls.complete
            and together
            and len(inside) == len(group_calls.by_rank)
            and 2 * len(group_calls.missing) < len(group_calls.members)
            and all(wait.lasting for wait in inside)
        ):
            return _of(inside[0], Kind.BEHIND, group_calls.missing, inside, waits)
    return None


def apart(groups: Iterable[GroupCalls], waits: Sequence[Wait]) -> Divergence | None:
    """All are in one collective that does not end, and some called it from another place in the
    code, as they never did before."""
    for group_calls in groups:
        inside = [wait for wait in waits if wait.group_calls is group_calls]
        if group_calls.missing or len(inside) < len(group_calls.members) or not inside:
            continue
        sequence = inside[0].sequence
        if any(wait.sequence != sequence or not wait.lasting for wait in inside):
            continue
        keys = keys_of(group_calls)
        usual = common(keys)
        others = [rank for rank in keys if keys[rank][sequence] != usual[sequence]]
        met = {(usual[k], called[k]) for called in keys.values() for k in called if k < sequence}
        new = [rank for rank in others if (usual[sequence], keys[rank][sequence]) not in met]
        if others and new == others and 2 * len(others) < len(group_calls.members):
            first = next(wait for wait in inside if wait.rank not in others)
            divergence = _of(first, Kind.SITE, tuple(sorted(others)), inside, waits)
            return replace(
                divergence, expecting=tuple(r for r in divergence.expecting if r not in others)
            )
    return None


def _lasts(there: Sequence[Wait], group_calls: GroupCalls, culprits: tuple[int, ...]) -> bool:
    """Whether the wait is long enough, or, if its length is unknown, all other ranks wait."""
    if any(wait.seconds is None and not wait.timed_out for wait in there):
        present = {wait.rank for wait in there} | set(culprits)
        return present == set(group_calls.members)
    return all(wait.lasting for wait in there)


def _expected(wait: Wait) -> bool:
    """Whether the rank waits in its usual call at this place."""
    called = keys_of(wait.group_calls, [wait.rank])[wait.rank]
    return is_habit(called, wait.sequence)


def _of(
    wait: Wait, kind: Kind, culprits: tuple[int, ...], there: Sequence[Wait], waits: Sequence[Wait]
) -> Divergence:
    """The divergence of these waits. `there`: the waits in the diverging collective."""
    group_calls = wait.group_calls
    seconds = [rank.seconds for rank in there]
    known = [second for second in seconds if second is not None]
    return Divergence(
        kind=kind,
        group=group_calls.group,
        members=group_calls.members,
        sequence=wait.sequence,
        expected=wait.entry,
        expecting=tuple(sorted(wait.rank for wait in there)),
        deviating={
            rank: group_calls.by_rank[rank].entry(wait.sequence)
            if rank in group_calls.by_rank
            else None
            for rank in culprits
        },
        culprits=culprits,
        waiting=tuple(sorted({wait.rank for wait in waits})),
        missing=group_calls.missing,
        agreed=agreed(group_calls, wait.sequence),
        seconds=min(known) if known and len(known) == len(seconds) else None,
        is_blocked=all(wait.lasting for wait in there),
    )
