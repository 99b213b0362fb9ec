"""Title, cause and fixes of collectives that do not match between ranks."""

from __future__ import annotations

import os
from collections.abc import Callable

from mgpu_doctor.analysis.collectives.divergence import Divergence, Kind
from mgpu_doctor.analysis.collectives.process_groups import DEFAULT_GROUP
from mgpu_doctor.case.flights import Collective
from mgpu_doctor.findings import Fix
from mgpu_doctor.formatting import format_ranks

MOVING = 8
"""A job whose ranks all made so many collectives since is not stopped by it."""
ROWS = 4
Place = tuple[str, int | None, str]
"""File, line and function."""


def goes_on(found: Divergence) -> bool:
    """Whether the ranks went on, with wrong partners."""
    return not found.stands and found.beyond >= MOVING


def title(found: Divergence) -> str:
    """One line: who called what where, against whom."""
    tell = _TITLES.get(found.kind, _other_call) if found.culprits else _UNDECIDED.get(found.kind)
    return (tell or _sides)(found)


def cause(found: Divergence) -> str:
    """What happened, and how far it has come since."""
    return _CAUSES.get(found.kind, _differ)(found)


def told(one: Collective | None, against: Collective | None = None) -> str:
    """`all_reduce [1024] at train.py:87`; of two calls in one place, the callers that differ."""
    if one is None:
        return "nothing"
    size = " ".join(str(list(shape)) for shape in one.inputs[:2])
    more = " …" if len(one.inputs) > 2 else ""
    place = place_of(one, against)
    at = f" at {spot(place)}" if place else ""
    return f"{one.operation}{f' {size}{more}' if size else ''}{at}"


def spot(place: Place, *, whole: bool = False) -> str:
    """`train.py:87`; `whole`: with its folders."""
    file = place[0] if whole else os.path.basename(place[0])
    return file if place[1] is None else f"{file}:{place[1]}"


def place_of(one: Collective, against: Collective | None) -> Place | None:
    """The innermost own line; where the other call has the same, the caller that it differs in."""
    if one.site not in one.frames or against is None or against.site != one.site:
        return one.site
    offset = len(against.frames) - len(one.frames)
    for index in range(one.frames.index(one.site), len(one.frames)):
        other = index + offset
        if 0 <= other < len(against.frames) and one.frames[index] != against.frames[other]:
            return one.frames[index]
    return one.site


def group_name(group: str) -> str:
    """Torch's own name of it; that of all ranks has a word of its own."""
    return "the default group" if group == DEFAULT_GROUP else f"group {group}"


def other_call(found: Divergence) -> Collective | None:
    """What a rank called that is not what was expected."""
    return next((entry for entry in found.deviating.values() if entry is not None), None)


def _expected(found: Divergence) -> str:
    return told(found.expected, other_call(found))


def _others(found: Divergence) -> str:
    return format_ranks(found.expecting) if found.expecting else "the others"


def _who(found: Divergence) -> str:
    return _cap(format_ranks(found.deviating))


def _and_more(found: Divergence) -> str:
    return f" and {found.calls - 1} more" if found.calls > 1 else ""


def _have(count: int) -> str:
    return "has" if count == 1 else "have"


def _wait(found: Divergence) -> str:
    return "waits" if len(found.expecting) == 1 else "wait"


def _late(found: Divergence) -> str:
    who = format_ranks(found.culprits)
    if not found.stands:
        return f"If the job stood when it was dumped: {who} did not come to {_expected(found)}"
    waited = f" for {found.seconds:.0f} s" if found.seconds is not None else ""
    return (
        f"{_cap(who)} did not come to {_expected(found)}, in which {_others(found)} "
        f"{_have(len(found.expecting))} waited{waited}"
    )


def _alone(found: Divergence) -> str:
    missing = [rank for rank in found.members if rank not in found.expecting]
    rest = format_ranks(missing) if missing else "the others"
    return (
        f"{_cap(_others(found))} {_wait(found)} in {_expected(found)}, which {rest} "
        f"{_have(len(missing))} not called"
    )


def _ring(found: Divergence) -> str:
    return f"{_who(found)} wait for each other, each in another group"


def _strayed(found: Divergence) -> str:
    first = found.culprits[0]
    called = _in_group(found.deviating.get(first))
    return (
        f"{_cap(format_ranks(found.culprits))} left the usual order (rank {first}: {called}, where "
        f"it always called {_in_group(found.expected)}); {format_ranks(found.deviating)} wait for "
        "each other"
    )


def _in_group(one: Collective | None) -> str:
    return told(one) if one is None else f"{told(one)} in {group_name(one.group)}"


def _left_out(found: Divergence) -> str:
    left = f"{_expected(found)}{_and_more(found)}"
    return f"{_who(found)} left out {left}, which {_others(found)} called"


def _too_many(found: Divergence) -> str:
    called = told(other_call(found), found.expected)
    return f"{_who(found)} called {called}{_and_more(found)}, which {_others(found)} did not"


def _other_call(found: Divergence) -> str:
    called = told(other_call(found), found.expected)
    return f"{_who(found)} called {called} where {_others(found)} called {_expected(found)}"


def _sides(found: Divergence) -> str:
    called = told(other_call(found), found.expected)
    return (
        f"{_who(found)} called {called}, {_others(found)} {_expected(found)}: "
        "these are not one collective"
    )


_TITLES: dict[Kind, Callable[[Divergence], str]] = {
    Kind.BEHIND: _late,
    Kind.SKIPPED: _left_out,
    Kind.EXTRA: _too_many,
    Kind.DEADLOCK: _strayed,
}
_UNDECIDED: dict[Kind, Callable[[Divergence], str]] = {
    Kind.AHEAD: _alone,
    Kind.DEADLOCK: _ring,
}


def _number(found: Divergence) -> str:
    return f"In collective {found.sequence} of {group_name(found.group)}"


def _end(found: Divergence) -> str:
    if goes_on(found):
        return (
            f" All ranks made {found.beyond} collectives since: they exchange tensors that do not "
            "belong together."
        )
    return " The job cannot go on from there."


def _in_ring(found: Divergence) -> str:
    ring = "; ".join(
        f"rank {rank} called {_in_group(entry)}"
        for rank, entry in list(found.deviating.items())[:ROWS]
        if entry is not None
    )
    return (
        f"{_cap(ring)}. Each waits for the next, who will come only when its own is over: the "
        "ranks call the collectives of several groups in different orders."
    )


def _delayed(found: Divergence) -> str:
    who = format_ranks(found.culprits)
    if set(found.culprits) & set(found.missing):
        return (
            f"{_number(found)} all ranks that left a dump wait. {_cap(who)} left none: it has "
            "ended, or is where it cannot write one."
        )
    return (
        f"{_number(found)} {_others(found)} {_wait(found)}; all {found.agreed} before it fit. "
        f"What {who} did instead, its stack tells."
    )


def _unclear(found: Divergence) -> str:
    return (
        f"{_number(found)} {_others(found)} {_wait(found)}; all {found.agreed} before it fit. "
        "Either the others are held up, or only these call it at all: the dumps do not tell which."
    )


def _elsewhere(found: Divergence) -> str:
    return (
        f"{_number(found)} all ranks wait, in the same operation, called from different places: a "
        "branch that depends on the rank. Where it is a broadcast, each may take another rank for "
        "its source."
    )


def _shifted(found: Divergence) -> str:
    side = "" if found.culprits else " Which side is wrong the dumps do not tell."
    return (
        f"{_number(found)} the calls of {format_ranks(found.deviating)} begin to be shifted by "
        f"{found.calls} against the others': each meets a partner that is meant for another. "
        "Usually a branch that depends on the rank, its data or its loss, or an exception that "
        "was caught, leads there."
        f"{side}{_end(found)}"
    )


def _differ(found: Divergence) -> str:
    what = {Kind.SHAPE: "the sizes", Kind.DTYPE: "the types"}.get(found.kind, "the operations")
    side = "" if found.culprits else " Which side is wrong the dumps do not tell."
    return f"{_number(found)} {what} differ; all {found.agreed} before it fit.{side}{_end(found)}"


_CAUSES: dict[Kind, Callable[[Divergence], str]] = {
    Kind.DEADLOCK: _in_ring,
    Kind.BEHIND: _delayed,
    Kind.AHEAD: _unclear,
    Kind.SITE: _elsewhere,
    Kind.SKIPPED: _shifted,
    Kind.EXTRA: _shifted,
}


def _cap(text: str) -> str:
    return text[:1].upper() + text[1:]


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
