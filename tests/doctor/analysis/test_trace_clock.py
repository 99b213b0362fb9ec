"""Aligning clocks by collectives without numbers, in traces that do not start and end together."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mgpu_probes.outside.traces.trace_columns import EVENT_DTYPE, Kind

from mgpu_doctor.analysis.traces.joined_collectives import UnjoinableError, join
from mgpu_doctor.case.profiler_traces import Trace

STEP, TRANSFER = 100_000_000, 1_000_000
"""Nanoseconds."""


def traces(waits: list[list[int]], host: str | None = "node") -> list[Trace]:
    """A trace a rank: `waits[collective][rank]`, nanoseconds beyond the shortest."""
    made = []
    for rank in range(len(waits[0])):
        events = np.zeros(len(waits), EVENT_DTYPE)
        ends = STEP * np.arange(1, len(waits) + 1)
        events["length"] = [TRANSFER + wait[rank] for wait in waits]
        events["start"] = ends - events["length"] + rank  # clocks differ by some nanoseconds
        events["kind"], events["name"], events["group"] = Kind.NOTE, 1, -1
        events["sequence"] = -1
        made.append(
            Trace(
                f"rank{rank}",
                rank,
                len(waits[0]),
                None,
                host,
                ("", "gloo:all_reduce"),
                events,
                None,
                0,
            )
        )
    return made


def window(trace: Trace, first: int, last: int) -> Trace:
    return replace(trace, events=trace.events[first : len(trace.events) - last])


CUTS = st.tuples(st.integers(0, 4), st.integers(0, 4))


@given(
    CUTS,
    CUTS,
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=20, max_size=40),
)
def test_what_both_hold_is_joined_wherever_each_began(
    first: tuple[int, int], second: tuple[int, int], drawn: list[tuple[int, int]]
) -> None:
    waits = [[(a - min(a, b)) * 10**6, (b - min(a, b)) * 10**6] for a, b in drawn]
    one, other = traces(waits)
    joined = join([window(one, *first), window(other, *second)])
    begin, end = max(first[0], second[0]), len(waits) - max(first[1], second[1])
    assert joined.collectives == end - begin
    expected = np.array(waits[begin:end]).sum(axis=0) * 1e-9
    assert joined.waits.sum(axis=0) == pytest.approx(expected, abs=1e-6)


def test_clocks_of_two_hosts_are_not_compared() -> None:
    one, other = traces([[0, 50_000_000]] * 20)
    with pytest.raises(UnjoinableError):
        join([window(one, 1, 0), replace(other, host="another")])


def test_traces_of_different_moments_are_not_joined_by_the_clock() -> None:
    one, other = traces([[0, 50_000_000]] * 20)
    later = other.events.copy()
    later["start"] += 60 * STEP + STEP // 2
    with pytest.raises(UnjoinableError):
        join([window(one, 1, 0), replace(other, events=later)])


def test_a_group_is_known_by_its_name_whatever_its_number() -> None:
    one, other = traces([[0, 50_000_000]] * 20)
    mine, theirs = one.events.copy(), other.events.copy()
    mine["group"], theirs["group"] = 0, 2
    named = (
        replace(one, names=("dp", "gloo:all_reduce"), events=mine),
        replace(other, names=("", "gloo:all_reduce", "dp"), events=theirs),
    )
    assert join(named).collectives == 20
    with pytest.raises(UnjoinableError):
        join([named[0], other])


@pytest.mark.parametrize(("apart", "joined"), [(0.24, True), (0.26, False)])
def test_collectives_that_end_a_quarter_of_their_distance_apart_are_others(
    apart: float, joined: bool
) -> None:
    one, other = traces([[0, 50_000_000]] * 20)
    late = other.events.copy()
    late["start"] += int(apart * STEP)
    shifted = [window(one, 1, 0), replace(other, events=late)]
    if joined:
        assert join(shifted).collectives == 19
    else:
        with pytest.raises(UnjoinableError):
            join(shifted)


@pytest.mark.parametrize("later", [-20, 20])
def test_either_clock_may_be_a_little_ahead(later: int) -> None:
    one, other = traces([[0, 50_000_000]] * 20)
    shifted = one.events.copy()
    shifted["start"] += later
    assert join([replace(window(one, 1, 0), events=shifted[1:]), other]).collectives == 19
