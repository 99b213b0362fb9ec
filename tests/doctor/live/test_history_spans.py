"""Spans in columns: gaps stay gaps, and no value is invented."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mgpu_doctor.live.history_spans import NONE, Spans, columns, gaps, values

START = 1.79e9


def spans(*rows: tuple[float, float, float]) -> Spans:
    """Start, end, value; seconds after `START`."""
    start, end, value = np.array(rows, dtype=float).T
    return values(START + start, START + end, value)


@st.composite
def some_spans(draw: st.DrawFn) -> Spans:
    """Tenths of a second, so that neither gaps nor values are lost to rounding."""
    at, rows = draw(st.integers(0, 50)), []
    for _ in range(draw(st.integers(0, 30))):
        begin = at + draw(st.sampled_from([0, 0, 0, 1, 20]))
        at = begin + draw(st.integers(1, 30))
        rows.append((begin / 10, at / 10, draw(st.floats(-1e6, 1e6))))
    return spans(*rows) if rows else NONE


def test_each_column_tells_what_was_measured_in_it() -> None:
    cut = columns(spans((0, 1, 10), (1, 2, 20), (2, 4, 40)), START, START + 4, 2)
    assert cut.low.tolist() == [10, 40]
    assert cut.mean.tolist() == pytest.approx([15, 40])
    assert cut.high.tolist() == [20, 40]


def test_a_gap_is_blank_and_what_lies_beside_it_is_not_drawn_into_it() -> None:
    cut = columns(spans((0, 2, 1), (6, 8, 9)), START, START + 8, 4)
    assert cut.mean[[0, 3]].tolist() == [1, 9]
    assert np.isnan(cut.mean[1:3]).all()
    assert np.isnan(cut.low[1:3]).all()
    assert np.isnan(cut.high[1:3]).all()


def test_a_bucket_wider_than_a_column_fills_all_of_its_own() -> None:
    cut = columns(spans((0, 10, 5)), START, START + 20, 20)
    assert (~np.isnan(cut.mean)).tolist() == [True] * 10 + [False] * 10


def test_a_value_without_duration_fills_one_column() -> None:
    cut = columns(spans((3, 3, 7)), START, START + 10, 10)
    assert np.flatnonzero(np.isfinite(cut.mean)).tolist() == [2]
    assert np.nanmax(cut.mean) == 7


def test_a_later_span_begins_where_the_one_before_ended() -> None:
    made = spans((0, 5, 1), (3, 8, 2))
    assert made.start.tolist() == [START, START + 5]


@given(some_spans(), st.integers(1, 60), st.integers(0, 40), st.integers(1, 80))
def test_columns_hold_exactly_what_was_measured_there(
    made: Spans, count: int, start: int, length: int
) -> None:
    begin, stop = START + start, START + start + length
    cut = columns(made, begin, stop, count)
    width = (stop - begin) / count
    for place in range(count):
        left, right = begin + place * width, begin + (place + 1) * width
        inside = (made.end > left + 1e-4) & (made.start < right - 1e-4)
        if not inside.any():
            touching = (made.end > left - 1e-4) & (made.start < right + 1e-4)
            assert np.isnan(cut.mean[place]) or touching.any()
            continue
        assert made.low[inside].min() >= cut.low[place]
        assert made.high[inside].max() <= cut.high[place]
        assert cut.low[place] <= cut.mean[place] <= cut.high[place]
        assert cut.low[place] in made.low
        assert cut.high[place] in made.high


def test_gaps_are_reported_from_when_to_when() -> None:
    made = spans((0, 10, 1), (15, 20, 1), (20.5, 25, 1))
    assert gaps(made, START, START + 30, 1) == [(START + 10, START + 15), (START + 25, START + 30)]
    assert gaps(made, START + 12, START + 25, 1) == [(START + 12, START + 15)]
    assert gaps(NONE, START, START + 30, 1) == []


def test_only_what_was_over_is_known_at_a_moment() -> None:
    made = spans((0, 1, 1), (1, 2, 2), (2, 3, 3))
    assert made.until(START + 2.5).mean.tolist() == [1, 2]
