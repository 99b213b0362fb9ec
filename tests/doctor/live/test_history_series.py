"""Series: merging invents no values, a gap stays a gap, memory is bounded."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mgpu_doctor.live.history_series import (
    BLOCKS,
    EMPTY,
    ROWS,
    WIDTHS,
    Series,
    mean_columns,
)
from mgpu_doctor.live.history_spans import columns, gaps, trace_spans
from tests.support.seeds import at_most

START = 1.79e9
HOURS = 3600


def filled(seconds: int, spacing: float = 1.0) -> Series:
    series = Series(2)
    for place in range(int(seconds / spacing)):
        at = START + place * spacing
        series.append(at, [math.sin(place / 50), float(place)])
    return series


def test_a_sample_stands_for_the_time_since_the_one_before() -> None:
    spans = trace_spans(filled(4).trace(), 1)
    assert spans.start.tolist() == [START, START, START + 1, START + 2]
    assert spans.end.tolist() == [START, START + 1, START + 2, START + 3]
    assert spans.mean.tolist() == [0, 1, 2, 3]


def test_one_that_comes_late_leaves_a_gap_of_all_but_the_usual_spacing() -> None:
    series = filled(10)
    series.append(START + 60, [0.5, 60])
    spans = trace_spans(series.trace(), 0)
    assert gaps(spans, START, START + 60, 1) == [(START + 9, START + 59)]


def test_a_little_lateness_is_no_gap() -> None:
    series = filled(10)
    series.append(START + 11, [0.5, 60])
    assert gaps(trace_spans(series.trace(), 0), START, START + 11, 0.5) == []


def test_what_is_unknown_or_no_number_is_a_gap_of_that_measure_alone() -> None:
    series = Series(2)
    for place, value in enumerate([1.0, None, math.inf, 1e300, 5.0]):
        series.append(START + place, [value, 1.0])
    assert trace_spans(series.trace(), 0).mean.tolist() == [1.0, 5.0]
    assert len(trace_spans(series.trace(), 1)) == 5


def test_six_hours_are_kept_in_bounded_memory() -> None:
    series = filled(10 * HOURS)
    trace = series.trace()
    rows = sum(block.rows for block in trace.blocks)
    assert rows <= (BLOCKS + 1) * ROWS * (1 + len(WIDTHS))
    assert trace.first is not None
    assert START + 10 * HOURS - trace.first >= 6 * HOURS
    size = sum(
        part.itemsize * len(part)
        for block in trace.blocks
        for part in (block.starts, block.ends, block.values)
    )
    # 64 GPUs of 12 measures and all that goes with them stay below 60 MB.
    assert 64 * size / 2 * 12 < 40e6
    spans = trace_spans(trace, 1)
    assert gaps(spans, trace.first, START + 10 * HOURS - 1, 1e-3) == []
    assert spans.high.max() == 10 * HOURS - 1
    assert spans.mean[-1] == 10 * HOURS - 1


def test_samples_as_dense_as_ten_a_second_cover_hours_too() -> None:
    trace = filled(HOURS, 0.1).trace()
    assert trace.first is not None
    assert trace.first <= START + 1


@settings(max_examples=at_most(15), deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([1.0] * 20 + [1.2, 0.8, 30.0]),
            st.one_of(st.none(), st.floats(0, 1, width=32)),
        ),
        min_size=1,
        max_size=30,
    ),
    st.integers(1, 40),
)
def test_merging_invents_nothing(pattern: list[tuple[float, float | None]], times: int) -> None:
    merged, exact = Series(2), Series(2, math.inf)
    at = START
    for spacing, value in pattern * times:
        at += spacing
        for series in (merged, exact):
            series.append(at, [value, 1.0])
    trace = merged.trace()
    assert trace.first is not None
    for measure in range(2):
        traced, raw = trace_spans(trace, measure), trace_spans(exact.trace(), measure)
        assert (traced.start[1:] >= traced.end[:-1]).all()
        assert (traced.low <= traced.mean).all()
        assert (traced.mean <= traced.high).all()
        known = raw.start >= trace.first
        there = gaps(traced, trace.first, at, 0.01), gaps(raw, trace.first, at, 0.01)
        if len(traced) and raw.start[0] >= trace.first:
            assert there[0] == there[1]
        covered = np.sum(traced.end - traced.start)
        assert covered == pytest.approx(np.sum((raw.end - raw.start)[known]), abs=1e-3)
        if known.any():
            assert set(traced.low) <= set(raw.low)
            assert set(traced.high) <= set(raw.high)
            weight = np.sum(traced.mean * (traced.end - traced.start))
            exactly = np.sum((raw.mean * (raw.end - raw.start))[known])
            assert weight == pytest.approx(exactly, rel=1e-3, abs=1e-3)


def test_what_was_handed_out_never_changes() -> None:
    series = filled(100)
    trace = series.trace()
    before = trace_spans(trace, 1).mean.tolist()
    for place in range(100, 3000):
        series.append(START + place, [0.0, -1.0])
    assert trace_spans(trace, 1).mean.tolist() == before


def test_full_blocks_are_shared_not_copied() -> None:
    series = filled(ROWS + 3)
    first, again = series.trace(), series.trace()
    assert first.blocks[0] is again.blocks[0]


def test_a_sample_of_the_past_is_refused_and_a_clock_set_back_begins_anew() -> None:
    series = filled(10)
    series.append(START + 5, [9.0, 9.0])
    assert len(trace_spans(series.trace(), 0)) == 10
    series.append(START - 4000, [9.0, 9.0])
    assert trace_spans(series.trace(), 0).mean.tolist() == [9.0]


def test_the_means_of_several_measures_are_those_of_each_alone() -> None:
    rng = np.random.default_rng(7)
    series, at = Series(3, blocks=2), 1000.0
    for _ in range(900):  # more than is kept one by one; with gaps, and unknown values
        at += 1.0 if rng.random() < 0.9 else float(rng.uniform(0.0, 12.0))
        read = [value if rng.random() < 0.8 else None for value in rng.random(3).tolist()]
        series.append(at, read)
    trace = series.trace()
    for start, count in ((at - 100.0, 100), (at - 37.3, 50), (900.0, 80), (at + 5, 4)):
        means = mean_columns(trace, [2, 0], start, max(at, start + 3), count)
        for measure, mean in zip((2, 0), means, strict=True):
            alone = columns(trace_spans(trace, measure), start, max(at, start + 3), count).mean
            np.testing.assert_allclose(mean, alone, rtol=1e-6)
    assert np.isnan(mean_columns(EMPTY, [0], 0.0, 9.0, 3)).all()
