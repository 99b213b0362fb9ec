"""When two ranks' entries of one sequence number cannot be the same collective. Pure."""

from __future__ import annotations

from enum import Enum
from math import prod

from mgpu_doctor.analysis.collectives.circles import Slot
from mgpu_doctor.case.flights import Collective

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


class Clash(str, Enum):
    OPERATION = "operation"
    DTYPE = "dtype"
    SHAPE = "shape"


def clash(one: Slot, other: Slot) -> Clash | None:
    """What keeps two ranks' calls from being one collective; None where they may be.

    A slot that is still being filled is compared as far as it goes.
    """
    for a, b in zip(one, other, strict=False):
        found = _clash(a, b)
        if found is not None:
            return found
    return None


def _clash(a: Collective, b: Collective) -> Clash | None:
    if a.operation != b.operation:
        return Clash.OPERATION
    if a.dtypes and b.dtypes and set(a.dtypes) != set(b.dtypes):
        return Clash.DTYPE
    operation = a.operation
    inputs = operation in SAME_SIZE or operation in SAME_INPUT
    outputs = operation in SAME_SIZE or operation in SAME_OUTPUT
    if (inputs and _differ(a.inputs, b.inputs)) or (outputs and _differ(a.outputs, b.outputs)):
        return Clash.SHAPE
    return None


def _differ(a: tuple[tuple[int, ...], ...], b: tuple[tuple[int, ...], ...]) -> bool:
    """Unequal numbers of elements; [4, 2] and [8] are one size to every backend."""
    return bool(a and b) and sum(map(prod, a)) != sum(map(prod, b))
