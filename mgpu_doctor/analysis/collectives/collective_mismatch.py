"""Ranks that called different collectives under one sequence number. Pure.

A rank that omits one collective pairs all later ones with the wrong calls of the other ranks. They
may well succeed, step after step, until a shape, an operation or the end of the loop blocks the
job; what the time-out names is then far from the fault. So calls are compared together with their
place in the code, and a mismatch is traced back to where a rank's calls began to be shifted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from math import prod

from mgpu_doctor.analysis.collectives.call_patterns import Key, Shift, find_shift, is_habit, key_of
from mgpu_doctor.analysis.collectives.divergence import Divergence, Kind
from mgpu_doctor.analysis.collectives.process_groups import GroupCalls, Slot
from mgpu_doctor.case.flight_records import Collective

SAME_SIZE = frozenset(
    {
        "all_reduce",
        "allreduce",
        "allreduce_coalesced",
        "all_reduce_coalesced",
        "broadcast",
        "_broadcast_oop",
        "reduce",
        "_reduce_oop",
        "_all_gather_base",
        "_allgather_base",
        "all_gather_single",
        "all_gather_into_tensor_coalesced",
        "allgather_into_tensor_coalesced",
        "_reduce_scatter_base",
        "reduce_scatter_single",
        "reduce_scatter_tensor_coalesced",
    }
)
"""Every rank must give and take as many elements as the others: the operations of
torch.distributed that its documentation (and torch.distributed.flight_recorder) holds to equal
sizes. gather, scatter, all_to_all and the uneven forms may differ."""
SAME_OUTPUT = frozenset({"all_gather", "all_gather_v", "allgather"})
"""Ranks may give unequal tensors, but all list the same results."""
SAME_INPUT = frozenset({"reduce_scatter", "reduce_scatter_v"})


class Mismatch(str, Enum):
    OPERATION = "operation"
    DTYPE = "dtype"
    SHAPE = "shape"


def compare_slots(slot: Slot, other: Slot) -> Mismatch | None:
    """Why two ranks' calls cannot be one collective; None if they can.

    A slot that is still being filled is compared as far as it goes.
    """
    for a, b in zip(slot, other, strict=False):
        mismatch = _compare_calls(a, b)
        if mismatch is not None:
            return mismatch
    return None


def _compare_calls(a: Collective, b: Collective) -> Mismatch | None:
    if a.operation != b.operation:
        return Mismatch.OPERATION
    if a.dtypes and b.dtypes and set(a.dtypes) != set(b.dtypes):
        return Mismatch.DTYPE
    operation = a.operation
    inputs = operation in SAME_SIZE or operation in SAME_INPUT
    outputs = operation in SAME_SIZE or operation in SAME_OUTPUT
    if (inputs and _differ(a.inputs, b.inputs)) or (outputs and _differ(a.outputs, b.outputs)):
        return Mismatch.SHAPE
    return None


def _differ(a: tuple[tuple[int, ...], ...], b: tuple[tuple[int, ...], ...]) -> bool:
    """Whether the numbers of elements differ; [4, 2] and [8] are one size to every backend."""
    return bool(a and b) and sum(map(prod, a)) != sum(map(prod, b))


LEAST_FITTING, LEAST_DISTINCT, LEAST_AGREED = 8, 2, 8
"""Calls that a shift must explain in a running job, kinds of calls among them, and equal calls
before it."""


def first_clash(group_calls: GroupCalls) -> Divergence | None:
    """The first number at which the calls cannot be one collective, traced back to its origin."""
    for sequence in sorted(
        {k for rank_calls in group_calls.by_rank.values() for k in rank_calls.slots}
    ):
        slots = {
            r: slot
            for r, rank_calls in group_calls.by_rank.items()
            if (slot := rank_calls.slots.get(sequence))
        }
        parties = _parties(slots)
        if len(parties) > 1:
            return _describe(group_calls, sequence, parties, slots)
    return None


def silent_shift(group_calls: GroupCalls) -> Divergence | None:
    """A rank whose calls are shifted against the others' while all of them go on: they exchange
    the wrong tensors. Needs three ranks or more."""
    if len(group_calls.by_rank) < 3:
        return None
    keys = keys_of(group_calls)
    usual = common(keys)
    for rank, mine in keys.items():
        shift = find_shift(mine, usual)
        if (
            shift is not None
            and shift.fitting >= LEAST_FITTING
            and shift.distinct >= LEAST_DISTINCT
            and shift.agreed >= LEAST_AGREED
        ):
            most = [key for key in keys if keys[key].get(shift.sequence) == usual[shift.sequence]]
            if 2 * len(most) > len(group_calls.members):
                return _shifted(group_calls, shift, [rank], most)
    return None


def traced(
    divergence: Divergence, group_calls: GroupCalls, others: Iterable[int], most: Iterable[int]
) -> Divergence:
    """The divergence at its origin, if one shift of these ranks explains it; else unchanged."""
    most = list(most)
    shifts = {rank: shift_of(group_calls, rank, most) for rank in others}
    known = [shift for shift in shifts.values() if shift is not None]
    if not known or len(known) < len(shifts) or len({shift.by > 0 for shift in known}) > 1:
        return divergence
    first = min(known, key=lambda shift: shift.sequence)
    if first.sequence > divergence.sequence:
        return divergence
    origin = _shifted(group_calls, first, list(shifts), most)
    return replace(
        origin,
        culprits=divergence.culprits,
        waiting=divergence.waiting,
        seconds=divergence.seconds,
        is_blocked=divergence.is_blocked,
        beyond=divergence.beyond,
        by_routine=divergence.by_routine,
    )


def shift_of(group_calls: GroupCalls, rank: int, most: Iterable[int]) -> Shift | None:
    """Where a rank's calls began to be shifted against those of the others."""
    others_calls = common(keys_of(group_calls, [other for other in most if other != rank]))
    return find_shift(keys_of(group_calls, [rank])[rank], others_calls)


def left_habits(others: Iterable[int], party: Sequence[int], group_calls: GroupCalls) -> bool:
    """Whether all `others` left out their usual call there, and no rank of the party did."""
    others_calls = common(keys_of(group_calls, party))
    shifts = [shift_of(group_calls, rank, party) for rank in others]
    return all(
        shift is not None and shift.by > 0 and is_habit(others_calls, shift.sequence)
        for shift in shifts
    )


def keys_of(
    group_calls: GroupCalls, ranks: Iterable[int] | None = None
) -> dict[int, dict[int, Key]]:
    """Rank -> sequence number -> its call, as a key that can be compared."""
    return {
        rank: {k: key_of(slot) for k, slot in group_calls.by_rank[rank].slots.items()}
        for rank in (group_calls.by_rank if ranks is None else ranks)
    }


def common(keys: Mapping[int, Mapping[int, Key]]) -> dict[int, Key]:
    """Sequence number -> the call of most ranks."""
    votes: dict[int, Counter[Key]] = {}
    for called in keys.values():
        for sequence, key in called.items():
            votes.setdefault(sequence, Counter())[key] += 1
    return {sequence: votes[sequence].most_common(1)[0][0] for sequence in sorted(votes)}


def agreed(group_calls: GroupCalls, sequence: int) -> int:
    """Number of sequence numbers before this one that at least two dumps hold."""
    counts = Counter(
        k for rank_calls in group_calls.by_rank.values() for k in rank_calls.slots if k < sequence
    )
    return sum(count > 1 for count in counts.values())


def _parties(slots: Mapping[int, Slot]) -> list[list[int]]:
    """Groups of ranks whose calls match, the largest group first."""
    parties: list[list[int]] = []
    for rank, slot in slots.items():
        home = next(
            (party for party in parties if compare_slots(slots[party[0]], slot) is None), None
        )
        if home is None:
            parties.append([rank])
        else:
            home.append(rank)
    return sorted(parties, key=len, reverse=True)


def _describe(
    group_calls: GroupCalls, sequence: int, parties: list[list[int]], slots: Mapping[int, Slot]
) -> Divergence:
    most, by_routine = parties[0], False
    decided = 2 * len(most) > len(group_calls.members)
    if not decided and len(parties) == 2:
        faithful = [
            party
            for party, other in (parties, parties[::-1])
            if left_habits(other, party, group_calls)
        ]
        if len(faithful) == 1:
            most, by_routine = faithful[0], True
    others = [rank for rank in slots if rank not in most]
    beyond = min(rank_calls.last for rank_calls in group_calls.by_rank.values()) - sequence
    wrong = compare_slots(slots[most[0]], slots[others[0]]) or Mismatch.OPERATION
    divergence = Divergence(
        kind=Kind(wrong.value),
        group=group_calls.group,
        members=group_calls.members,
        sequence=sequence,
        expected=slots[most[0]][0],
        expecting=tuple(sorted(most)),
        deviating={rank: slots[rank][0] for rank in others},
        culprits=tuple(sorted(others)) if decided or by_routine else (),
        waiting=(),
        missing=group_calls.missing,
        agreed=agreed(group_calls, sequence),
        beyond=max(0, beyond),
        by_routine=by_routine,
    )
    return traced(divergence, group_calls, others, most)


def _shifted(
    group_calls: GroupCalls, shift: Shift, others: list[int], most: list[int]
) -> Divergence:
    entries = {rank: group_calls.by_rank[rank].entry(shift.sequence) for rank in most}
    expected = next((entry for entry in entries.values() if entry is not None), None)
    return Divergence(
        kind=Kind.SKIPPED if shift.by > 0 else Kind.EXTRA,
        group=group_calls.group,
        members=group_calls.members,
        sequence=shift.sequence,
        expected=expected,
        expecting=tuple(sorted(rank for rank, entry in entries.items() if entry is not None)),
        deviating={rank: group_calls.by_rank[rank].entry(shift.sequence) for rank in others},
        culprits=tuple(sorted(others)),
        waiting=(),
        missing=group_calls.missing,
        agreed=agreed(group_calls, shift.sequence),
        calls=abs(shift.by),
        is_blocked=False,
        beyond=max(
            0, min(rank_calls.last for rank_calls in group_calls.by_rank.values()) - shift.sequence
        ),
    )
