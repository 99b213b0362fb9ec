"""Medians computed in parts equal plain medians."""

from __future__ import annotations

import numpy as np
import pytest

from mgpu_doctor.analysis.statistics import medians
from mgpu_doctor.analysis.statistics.medians import (
    column_medians,
    median_of_others,
    middle,
    row_medians,
)


@pytest.fixture(params=[(7, 2), (9, 3), (6, 4), (40, 33), (5, 64)])
def values(request: pytest.FixtureRequest) -> np.ndarray:
    shape: tuple[int, int] = request.param
    return np.random.default_rng(3).integers(0, 20, shape).astype(np.float32)


@pytest.fixture(autouse=True)
def _in_small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(medians, "BLOCK", 50)


def test_the_middle_tells_the_median_of_the_others(values: np.ndarray) -> None:
    found = middle(values).without(values)
    for row, column in np.ndindex(*values.shape):
        assert found[row, column] == np.median(np.delete(values[row], column))
    np.testing.assert_array_equal(middle(values).median, np.median(values, axis=1))
    np.testing.assert_array_equal(median_of_others(values), found)


def test_rows_that_are_not_known_have_no_middle(values: np.ndarray) -> None:
    values[1, 0] = np.nan
    assert np.isnan(middle(values).median[1])
    assert not np.isnan(np.delete(middle(values).median, 1)).any()


def test_columns_and_rows(values: np.ndarray) -> None:
    np.testing.assert_array_equal(column_medians(values), np.median(values, axis=0))
    np.testing.assert_array_equal(row_medians(values), np.median(values, axis=1))
    values[2, 1] = np.nan
    np.testing.assert_array_equal(column_medians(values), np.nanmedian(values, axis=0))
    np.testing.assert_array_equal(row_medians(values), np.nanmedian(values, axis=1))


def test_where_nothing_is_known() -> None:
    unknown = np.full((3, 4), np.nan)
    assert np.isnan(row_medians(unknown)).all()
    assert np.isnan(column_medians(unknown)).all()
    assert np.isnan(median_of_others(np.ones((3, 1)))).all()
