"""Collectives of several traces, joined by group and number, without comparing clocks.

All ranks leave a collective together, so a rank's time in it beyond that of the last arrival is
waiting.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from mgpu_probes.outside.traces.trace_columns import Events, Kind

from mgpu_doctor.analysis.traces import event_names
from mgpu_doctor.analysis.traces.time_split import step_starts
from mgpu_doctor.case.profiler_traces import Trace

Floats = npt.NDArray[np.float64]


class UnjoinableError(Exception):
    """Why the ranks cannot be compared, as part of a sentence."""


@dataclass(frozen=True, slots=True)
class Waits:
    """Seconds; a row a unit, a column a rank."""

    ranks: tuple[int, ...]
    waits: Floats
    unit: str
    """`step`, or `stretch` (of some collectives) where no steps are marked."""
    collectives: int
    """Joined altogether."""


@dataclass(frozen=True, slots=True)
class _Called:
    """A rank's collectives of one group, in order."""

    families: tuple[str, ...]
    sequence: npt.NDArray[np.int64]
    start: npt.NDArray[np.int64]
    length: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Group:
    """Collectives that several ranks took part in."""

    columns: tuple[int, ...]
    start: npt.NDArray[np.int64]
    """On the first of these ranks."""
    length: npt.NDArray[np.int64]
    """A row a collective, a column a rank."""


MOST_STRETCHES = 20


def join(traces: Sequence[Trace]) -> Waits:
    """How long each rank waited in each step. Raises UnjoinableError."""
    numbered = {trace.rank: trace for trace in traces if trace.rank is not None}
    whole = {rank: trace for rank, trace in numbered.items() if trace.cut is None}
    numbered = whole if len(whole) > 1 else numbered
    if len(numbered) < 2:
        raise UnjoinableError("traces of two ranks at least are needed, with their numbers")
    ranks = tuple(sorted(numbered))
    called = [dict(_called(numbered[rank])) for rank in ranks]
    hosts = {numbered[rank].host for rank in ranks}
    groups = list(_groups(called, one_clock=len(hosts) == 1 and None not in hosts))
    if not groups:
        raise UnjoinableError(_why_not(called))
    steps = step_starts(numbered[ranks[0]])
    if len(steps) < 2 or any(group.columns[0] for group in groups):
        return _by_stretch(ranks, groups)
    waits = np.zeros((len(steps), len(ranks)))
    for group in groups:
        unit = np.searchsorted(steps, group.start, side="right") - 1
        _add(waits, group, np.maximum(0, unit))
    return Waits(ranks, waits, "step", sum(len(group.start) for group in groups))


def _by_stretch(ranks: tuple[int, ...], groups: Sequence[_Group]) -> Waits:
    """Each group's collectives in equal parts, by number."""
    least = min(len(group.start) for group in groups)
    count = max(1, min(MOST_STRETCHES, least))
    waits = np.zeros((count, len(ranks)))
    for group in groups:
        _add(waits, group, np.arange(len(group.start)) * count // len(group.start))
    whole = sum(len(group.start) for group in groups)
    return Waits(ranks, waits, "stretch", whole)


def _add(waits: Floats, group: _Group, unit: npt.NDArray[np.int64]) -> None:
    beyond = (group.length - group.length.min(axis=1, keepdims=True)) * 1e-9
    for place, column in enumerate(group.columns):
        waits[:, column] += np.bincount(unit, beyond[:, place], minlength=len(waits))


def _called(trace: Trace) -> Iterator[tuple[str, _Called]]:
    """Group name -> its collectives; without sends and receives, which are between two ranks."""
    events = collectives(trace)
    families = np.array(event_names.families(trace.names), dtype=object)
    if not len(events):
        return
    events = events[families[events["name"]] != ""]
    for group in np.unique(events["group"]):
        some = events[events["group"] == group]
        yield (
            trace.names[group] if group >= 0 else "",
            _Called(
                tuple(families[some["name"]]),
                some["sequence"].astype(np.int64),
                some["start"],
                some["length"],
            ),
        )


def collectives(trace: Trace) -> Events:
    """Kernels that exchange data, else the host's own records of its collectives."""
    events: Events = trace.events
    if trace.on_device:
        wanted = (events["kind"] == Kind.KERNEL) & event_names.moves(trace)
    else:
        wanted = (events["kind"] == Kind.NOTE) & event_names.hosted(trace)
    values: Events = events[wanted]
    return values


def _groups(called: Sequence[dict[str, _Called]], *, one_clock: bool) -> Iterator[_Group]:
    """The groups whose members all made the same calls. `one_clock`: all ran on one host."""
    for name in dict.fromkeys(name for calls in called for name in calls):
        columns = tuple(place for place, calls in enumerate(called) if name in calls)
        if len(columns) < 2:
            continue
        same = _same([called[place][name] for place in columns], one_clock=one_clock)
        if same is not None:
            yield _Group(
                columns,
                same[0].start,
                np.stack([member.length for member in same], axis=1),
            )


def _same(members: Sequence[_Called], *, one_clock: bool) -> list[_Called] | None:
    """The calls of all of them, in one order; None if that is unknown."""
    numbers = [member.sequence for member in members]
    if all(
        len(number) and number.min() >= 0 and len(np.unique(number)) == len(number)
        for number in numbers
    ):
        shared = numbers[0]
        for number in numbers[1:]:
            shared = np.intersect1d(shared, number)
        members = [_only(member, shared) for member in members]
    elif one_clock:
        members = _by_clock(members)
    first = members[0].families
    return [*members] if first and all(member.families == first for member in members) else None


def _by_clock(members: Sequence[_Called]) -> Sequence[_Called]:
    """Only the collectives that are in all traces: some traces begin or end a few collectives
    earlier (those taken for some seconds). All collectives if the times show no pattern."""
    ends = [member.start + member.length for member in members]
    apart = np.median(np.diff(ends[0])) if len(ends[0]) > 1 else 0.0
    shifts = [_shift(ends[0], other, float(apart) / 4) for other in ends]
    known = [shift for shift in shifts if shift is not None]
    if len(known) < len(members):
        return members
    first = max(-number for number in known)
    last = min(len(end) - number for end, number in zip(ends, known, strict=True))
    return [
        _Called(
            member.families[first + shift : last + shift],
            member.sequence[first + shift : last + shift],
            member.start[first + shift : last + shift],
            member.length[first + shift : last + shift],
        )
        for member, shift in zip(members, known, strict=True)
    ]


def _shift(ends: npt.NDArray[np.int64], others: npt.NDArray[np.int64], near: float) -> int | None:
    """How many places later in `others` stands what ended together with one of `ends`: within
    `near` nanoseconds, for most of them. None: no such number."""
    if not len(ends) or not len(others):
        return None
    after = np.clip(np.searchsorted(others, ends), 1, max(1, len(others) - 1))
    last = len(others) - 1
    after = np.minimum(after, last)
    before = np.maximum(after - 1, 0)
    nearest = np.where(abs(others[before] - ends) <= abs(others[after] - ends), before, after)
    shift = int(np.median(nearest - np.arange(len(ends))))
    places = np.arange(len(ends)) + shift
    both = (places >= 0) & (places <= last)
    if both.sum() * 2 < len(ends):
        return None
    gaps = abs(others[places[both]] - ends[both])
    return shift if float(np.median(gaps)) <= near else None


def _only(called: _Called, shared: npt.NDArray[np.int64]) -> _Called:
    order = np.argsort(called.sequence, kind="stable")
    places = order[np.isin(called.sequence[order], shared)]
    return _Called(
        tuple(called.families[place] for place in places),
        called.sequence[places],
        called.start[places],
        called.length[places],
    )


def _why_not(called: Sequence[dict[str, _Called]]) -> str:
    if not any(called):
        return "the traces hold no collective"
    return (
        "the ranks' traces do not hold the same collectives in the same order (they were not taken "
        "over the same steps, or are cut)"
    )
