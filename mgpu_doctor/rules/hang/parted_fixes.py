"""What to do where ranks' collectives part."""

from __future__ import annotations

from mgpu_doctor.analysis.collectives.divergence import Divergence, Kind
from mgpu_doctor.case.flights import Collective
from mgpu_doctor.findings import Fix
from mgpu_doctor.rules.hang.parted_words import spot

SAME_SIZES = Fix(
    "same-sizes",
    "Give the tensor the same size and type on all ranks",
    "The last batch may be smaller (`drop_last=True`), or the ranks built different models: print "
    "`tensor.shape, tensor.dtype` before the call. Unequal parts are gathered by sizes first "
    "(`all_gather` of the lengths), then padded.",
)
ONE_ORDER = Fix(
    "one-order",
    "Call the groups' collectives in one order on all ranks",
    "Sort the groups by a number that all ranks know and call them in that order; a rank that is "
    "in no such group passes over it. With `async_op=True` start all before waiting for any.",
)
DETAIL = Fix(
    "debug-detail",
    "Make the first mismatch an error next time",
    "`TORCH_DISTRIBUTED_DEBUG=DETAIL` compares every call before it is made (about three times "
    "the cost of a small all_reduce) and raises on the ranks, with both fingerprints.",
)


def fixes(found: Divergence) -> tuple[Fix, ...]:
    """By what parted."""
    if found.kind is Kind.DEADLOCK:
        return (ONE_ORDER,)
    if found.kind in (Kind.BEHIND, Kind.AHEAD):
        return (_look(found),)
    if found.kind in (Kind.SHAPE, Kind.DTYPE) and len(_places(found)) < 2:
        return (SAME_SIZES, DETAIL)
    return (_all_or_none(found), DETAIL)


def _places(found: Divergence) -> list[str]:
    """Where the program calls what was expected, and what came instead; each once."""
    entries = (found.expected, *found.deviating.values())
    return list(dict.fromkeys(at for one in entries if (at := _at(one)) is not None))


def _all_or_none(found: Divergence) -> Fix:
    places = _places(found)
    look = f"Compare {' and '.join(places[:2])}. " if len(places) > 1 else ""
    look = f"Look at {places[0]}. " if len(places) == 1 else look
    return Fix(
        "all-or-none",
        "Call the collective on all ranks or on none",
        f"{look}Whatever decides between them must come out alike on all ranks: decide on one, "
        "`dist.broadcast` the decision, then branch. An exception that one rank catches must be "
        "told to the others in the same way.",
    )


def _look(found: Divergence) -> Fix:
    ranks = found.culprits or tuple(found.deviating)
    who = f"rank {ranks[0]}" if len(ranks) == 1 else "these ranks"
    return Fix(
        "see-its-stack",
        f"See what {who} does instead",
        "While the job still stands: `mgpu-doctor diagnose PID` with the pid of its launcher or of "
        "any rank reads all stacks and names the line.",
    )


def _at(one: Collective | None) -> str | None:
    return spot(one.site) if one is not None and one.site is not None else None
