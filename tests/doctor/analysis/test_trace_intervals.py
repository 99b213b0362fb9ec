"""Unions of intervals, against sets of points."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mgpu_doctor.analysis.traces.time_split import Spans, common, gaps, length, spans, union, within

SOME = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 12)), max_size=12)


def spans_of(pairs: list[tuple[int, int]]) -> Spans:
    table = np.array(pairs, np.int64).reshape(-1, 2)
    return spans(table[:, 0], table[:, 1])


def points(some: Spans) -> set[int]:
    return {point for begin, end in some for point in range(begin, end)}


@given(SOME)
def test_a_union_holds_the_same_points_once(pairs: list[tuple[int, int]]) -> None:
    whole = union(spans_of(pairs))
    assert points(whole) == points(spans_of(pairs))
    assert length(whole) == len(points(whole))
    assert np.all(whole[1:, 0] > whole[:-1, 1])


@given(SOME, SOME)
def test_what_two_share(one: list[tuple[int, int]], other: list[tuple[int, int]]) -> None:
    first, second = union(spans_of(one)), union(spans_of(other))
    assert common(first, second) == common(second, first) == len(points(first) & points(second))
    assert list(within(first, second)) == [
        len(points(first) & points(second[i : i + 1])) for i in range(len(second))
    ]


@given(SOME)
def test_gaps_and_union_fill_the_whole(pairs: list[tuple[int, int]]) -> None:
    whole = union(spans_of(pairs))
    if len(whole):
        assert length(whole) + length(gaps(whole)) == whole[-1, 1] - whole[0, 0]
