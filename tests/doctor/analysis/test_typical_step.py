"""Median seconds of each phase, also where some steps were not measured."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from mgpu_probes.inprocess.layout import PHASES

from mgpu_doctor.analysis.measures import Measures, measure
from mgpu_doctor.analysis.steps.typical_step import _medians
from tests.support.synthetic import Synthetic, synthetic_case

seconds = st.one_of(st.floats(0, 100, width=32), st.just(float("nan")))
shapes = array_shapes(min_dims=2, max_dims=2, max_side=9)


@given(arrays(np.float32, shapes, elements=seconds))
def test_a_median_is_that_of_what_is_known(columns: np.ndarray) -> None:
    for place, median in enumerate(_medians(columns.T)):
        known = columns[:, place].astype(float)
        known = known[~np.isnan(known)]
        expected = float(np.median(known)) if len(known) else np.nan
        assert np.array_equal(median, expected, equal_nan=True)


def phase_medians(measures: Measures) -> list[dict[str, float | None]]:
    return [step.phases for step in measures.typical_steps]


def test_time_in_collectives_is_divided_where_ranks_can_be_compared() -> None:
    measures = measure(synthetic_case(Synthetic(ranks=3, steps=60)))
    assert measures.attribution is not None
    for column, medians in enumerate(phase_medians(measures)):
        assert set(medians) == set(PHASES)
        wait = float(np.median(measures.attribution.wait[:, column]))
        assert medians["wait"] == pytest.approx(wait)
        assert medians["communication"] == pytest.approx(
            float(np.median(measures.attribution.communication))
        )


def test_a_rank_alone_has_all_of_it_as_wait() -> None:
    (medians,) = phase_medians(measure(synthetic_case(Synthetic(ranks=1, steps=60))))
    assert medians["communication"] is None
    assert medians["wait"] is not None
