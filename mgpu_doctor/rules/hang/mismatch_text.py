"""A collective mismatch in words: title, cause and fixes."""

from __future__ import annotations

import os
from collections.abc import Callable

from mgpu_doctor.analysis.collectives.divergence import Divergence, Kind
from mgpu_doctor.analysis.collectives.process_groups import DEFAULT_GROUP
from mgpu_doctor.case.flight_records import Collective
from mgpu_doctor.findings import Fix
from mgpu_doctor.formatting import format_ranks

LEAST_PROGRESS = 8
"""Collectives that all ranks have called since the mismatch, from which on it does not block the
job."""
MOST_RING_CALLS = 4
Place = tuple[str, int | None, str]
"""File, line and function."""


def write_title(divergence: Divergence) -> str:
    """Which ranks called what and where, and what the others called."""
    titles = _TITLES if divergence.culprits else _TITLES_WITHOUT_CULPRIT
    default = _title_other_call if divergence.culprits else _title_both_sides
    return titles.get(divergence.kind, default)(divergence)


def describe_cause(divergence: Divergence) -> str:
    """What happened, and what came of it."""
    return _CAUSES.get(divergence.kind, _cause_different)(divergence)


def ranks_went_on(divergence: Divergence) -> bool:
    """Whether the ranks went on with wrong partners."""
    return not divergence.is_blocked and divergence.beyond >= LEAST_PROGRESS


def other_call(divergence: Divergence) -> Collective | None:
    """The first call that a rank made instead of the expected one."""
    return next((call for call in divergence.deviating.values() if call is not None), None)


def innermost_difference(call: Collective, other: Collective | None) -> Place | None:
    """The innermost line of the user's code that made the call; if the other call has the same, the
    caller in which the two differ."""
    if call.site not in call.frames or other is None or other.site != call.site:
        return call.site
    offset = len(other.frames) - len(call.frames)
    for index in range(call.frames.index(call.site), len(call.frames)):
        counterpart = index + offset
        is_known = 0 <= counterpart < len(other.frames)
        if is_known and call.frames[index] != other.frames[counterpart]:
            return call.frames[index]
    return call.site


def format_place(place: Place, *, full_path: bool = False) -> str:
    """`train.py:87`."""
    file = place[0] if full_path else os.path.basename(place[0])
    return file if place[1] is None else f"{file}:{place[1]}"


def format_group(group: str) -> str:
    """`group 3`, as torch names it, or `the default group`."""
    return "the default group" if group == DEFAULT_GROUP else f"group {group}"


def _format_call(
    call: Collective | None, other: Collective | None = None, *, with_group: bool = False
) -> str:
    """`all_reduce [1024] at train.py:87`; `other`: the call that it is compared with."""
    if call is None:
        return "nothing"
    sizes = "".join(f" {list(shape)}" for shape in call.inputs[:2])
    more = " …" if len(call.inputs) > 2 else ""
    place = innermost_difference(call, other)
    at = f" at {format_place(place)}" if place else ""
    group = f" in {format_group(call.group)}" if with_group else ""
    return f"{call.operation}{sizes}{more}{at}{group}"


def _expected_call(divergence: Divergence) -> str:
    return _format_call(divergence.expected, other_call(divergence))


def _deviating_call(divergence: Divergence) -> str:
    return _format_call(other_call(divergence), divergence.expected)


def _others(divergence: Divergence) -> str:
    return format_ranks(divergence.expecting) if divergence.expecting else "the others"


def _deviating_ranks(divergence: Divergence) -> str:
    return format_ranks(divergence.deviating).capitalize()


def _and_more(divergence: Divergence) -> str:
    return f" and {divergence.calls - 1} more" if divergence.calls > 1 else ""


def _have(count: int) -> str:
    return "has" if count == 1 else "have"


def _others_wait(divergence: Divergence) -> str:
    verb = "waits" if len(divergence.expecting) == 1 else "wait"
    return f"{_others(divergence)} {verb}"


# ----------------------------------------------------------------------------------------- titles


def _title_behind(divergence: Divergence) -> str:
    who, expected = format_ranks(divergence.culprits), _expected_call(divergence)
    if not divergence.is_blocked:
        return f"{who.capitalize()} had not reached {expected} when the job was dumped"
    seconds = f" for {divergence.seconds:.0f} s" if divergence.seconds is not None else ""
    waited = f"{_others(divergence)} {_have(len(divergence.expecting))} waited"
    return f"{who.capitalize()} did not reach {expected}, where {waited}{seconds}"


def _title_ahead(divergence: Divergence) -> str:
    missing = [rank for rank in divergence.members if rank not in divergence.expecting]
    rest = format_ranks(missing) if missing else "the others"
    wait = _others_wait(divergence)
    return (
        f"{wait[:1].upper()}{wait[1:]} in {_expected_call(divergence)}, which {rest} "
        f"{_have(len(missing))} not called"
    )


def _title_ring(divergence: Divergence) -> str:
    return f"{_deviating_ranks(divergence)} wait for each other, each in a different group"


def _title_wrong_order(divergence: Divergence) -> str:
    first = divergence.culprits[0]
    called = _format_call(divergence.deviating.get(first), with_group=True)
    usual = _format_call(divergence.expected, with_group=True)
    return (
        f"{format_ranks(divergence.culprits).capitalize()} broke the usual order (rank {first} "
        f"called {called}, where it had always called {usual}); "
        f"{format_ranks(divergence.deviating)} wait for each other"
    )


def _title_skipped(divergence: Divergence) -> str:
    skipped = f"{_expected_call(divergence)}{_and_more(divergence)}"
    return f"{_deviating_ranks(divergence)} skipped {skipped}, which {_others(divergence)} called"


def _title_extra(divergence: Divergence) -> str:
    called = f"{_deviating_call(divergence)}{_and_more(divergence)}"
    return f"{_deviating_ranks(divergence)} called {called}, which {_others(divergence)} did not"


def _title_other_call(divergence: Divergence) -> str:
    return (
        f"{_deviating_ranks(divergence)} called {_deviating_call(divergence)} where "
        f"{_others(divergence)} called {_expected_call(divergence)}"
    )


def _title_both_sides(divergence: Divergence) -> str:
    return (
        f"{_deviating_ranks(divergence)} called {_deviating_call(divergence)}, "
        f"{_others(divergence)} {_expected_call(divergence)}: these do not match"
    )


_Writer = Callable[[Divergence], str]
_TITLES: dict[Kind, _Writer] = {
    Kind.BEHIND: _title_behind,
    Kind.SKIPPED: _title_skipped,
    Kind.EXTRA: _title_extra,
    Kind.DEADLOCK: _title_wrong_order,
}
_TITLES_WITHOUT_CULPRIT: dict[Kind, _Writer] = {
    Kind.AHEAD: _title_ahead,
    Kind.DEADLOCK: _title_ring,
}


# ----------------------------------------------------------------------------------------- causes

SIDE_UNKNOWN = " The dumps do not show which side is wrong."


def _position(divergence: Divergence) -> str:
    return f"In collective {divergence.sequence} of {format_group(divergence.group)}"


def _outcome(divergence: Divergence) -> str:
    if ranks_went_on(divergence):
        return (
            f" All ranks have called {divergence.beyond} collectives since: they exchange tensors "
            "that do not belong together."
        )
    return " The job cannot continue from there."


def _cause_deadlock(divergence: Divergence) -> str:
    calls = [
        f"rank {rank} called {_format_call(call, with_group=True)}"
        for rank, call in list(divergence.deviating.items())[:MOST_RING_CALLS]
        if call is not None
    ]
    return (
        "The ranks call the collectives of several groups in different orders: "
        f"{'; '.join(calls)}. Each waits for the next one, which arrives only after its own "
        "collective is complete."
    )


def _cause_behind(divergence: Divergence) -> str:
    who = format_ranks(divergence.culprits)
    if set(divergence.culprits) & set(divergence.missing):
        return (
            f"{_position(divergence)}, all ranks that left a dump wait. {who.capitalize()} left "
            "none: it has ended, or is where it cannot write one."
        )
    return (
        f"{_position(divergence)}, {_others_wait(divergence)}; all {divergence.agreed} collectives "
        f"before it match. The stack of {who} shows what it did instead."
    )


def _cause_ahead(divergence: Divergence) -> str:
    return (
        f"{_position(divergence)}, {_others_wait(divergence)}; all {divergence.agreed} collectives "
        "before it match. Either the other ranks are blocked, or only these ranks call it at all: "
        "the dumps do not show which."
    )


def _cause_call_site(divergence: Divergence) -> str:
    return (
        f"{_position(divergence)}, all ranks wait in the same operation, called from different "
        "places: a branch that depends on the rank. If it is a broadcast, the ranks may have "
        "different source ranks."
    )


def _cause_shifted(divergence: Divergence) -> str:
    side = "" if divergence.culprits else SIDE_UNKNOWN
    return (
        f"{_position(divergence)}, the calls of {format_ranks(divergence.deviating)} start to be "
        f"shifted by {divergence.calls} against those of the others, so each is paired with a call "
        "that is meant for another. The usual reasons are a branch that depends on the rank, its "
        f"data or its loss, or an exception that was caught.{side}{_outcome(divergence)}"
    )


def _cause_different(divergence: Divergence) -> str:
    differing = {Kind.SHAPE: "the sizes", Kind.DTYPE: "the types"}
    side = "" if divergence.culprits else SIDE_UNKNOWN
    return (
        f"{_position(divergence)}, {differing.get(divergence.kind, 'the operations')} differ; all "
        f"{divergence.agreed} collectives before it match.{side}{_outcome(divergence)}"
    )


_CAUSES: dict[Kind, _Writer] = {
    Kind.DEADLOCK: _cause_deadlock,
    Kind.BEHIND: _cause_behind,
    Kind.AHEAD: _cause_ahead,
    Kind.SITE: _cause_call_site,
    Kind.SKIPPED: _cause_shifted,
    Kind.EXTRA: _cause_shifted,
}


# ------------------------------------------------------------------------------------------ fixes

SAME_SIZES = Fix(
    "same-sizes",
    "Give the tensor the same size and type on all ranks",
    "The last batch may be smaller (`drop_last=True`), or the ranks built different models: print "
    "`tensor.shape, tensor.dtype` before the call. To gather parts of unequal size, `all_gather` "
    "their lengths first, then pad.",
)
ONE_ORDER = Fix(
    "one-order",
    "Call the collectives of all groups in the same order on all ranks",
    "Sort the groups by a number that all ranks know and call their collectives in that order; a "
    "rank that is not in a group skips it. With `async_op=True`, start all before waiting for any.",
)
DETAIL = Fix(
    "debug-detail",
    "Turn the first mismatch into an error",
    "`TORCH_DISTRIBUTED_DEBUG=DETAIL` compares every call before it is made (about three times the "
    "cost of a small all_reduce) and raises on the ranks, with both fingerprints.",
)


def suggest_fixes(divergence: Divergence) -> tuple[Fix, ...]:
    """What to do, by the kind of mismatch."""
    if divergence.kind is Kind.DEADLOCK:
        return (ONE_ORDER,)
    if divergence.kind in (Kind.BEHIND, Kind.AHEAD):
        return (_see_its_stack(divergence),)
    if divergence.kind in (Kind.SHAPE, Kind.DTYPE) and len(_call_sites(divergence)) < 2:
        return (SAME_SIZES, DETAIL)
    return (_all_or_none(divergence), DETAIL)


def _call_sites(divergence: Divergence) -> list[str]:
    """Where the program makes the expected call and the others, without duplicates."""
    calls = (divergence.expected, *divergence.deviating.values())
    sites = [call.site for call in calls if call is not None]
    return list(dict.fromkeys(format_place(site) for site in sites if site is not None))


def _all_or_none(divergence: Divergence) -> Fix:
    sites = _call_sites(divergence)
    verb = "Compare" if len(sites) > 1 else "See"
    where = f"{verb} {' and '.join(sites[:2])}. " if sites else ""
    return Fix(
        "all-or-none",
        "Call the collective on all ranks or on none",
        f"{where}Whatever decides between them must have the same outcome on all ranks: decide on "
        "one rank, `dist.broadcast` the decision, then branch. If one rank catches an exception, "
        "broadcast that to the others, too.",
    )


def _see_its_stack(divergence: Divergence) -> Fix:
    ranks = divergence.culprits or tuple(divergence.deviating)
    who = f"rank {ranks[0]} does" if len(ranks) == 1 else "these ranks do"
    return Fix(
        "see-its-stack",
        f"See what {who} instead",
        "While the job is blocked, `mgpu-doctor diagnose PID` with the pid of its launcher or of "
        "any rank reads all stacks and names the line.",
    )
