"""Real jobs whose ranks have unequal data: always the same rank, changing ranks, and equal data."""

from __future__ import annotations

import pytest

from mgpu_doctor.diagnosis import diagnose
from mgpu_doctor.findings import Finding
from tests.support.jobs_in_turn import Job, job
from tests.support.observed_jobs import Observed, list_warnings, plan

pytestmark = pytest.mark.slow

BATCH = job("uneven_batches", "--uneven", "batch", "--rank", "1")
LENGTHS = job("uneven_batches", "--uneven", "lengths")
UNCOUNTED = job("uneven_batches", "--uneven", "lengths", "--no-loader")
EQUAL = job("uneven_batches", "--no-loader")
plan(BATCH, LENGTHS, UNCOUNTED, EQUAL)


def warnings_of(observed: Observed, job: Job) -> list[Finding]:
    return list_warnings(diagnose(observed.case_of(job)))


def test_twice_the_batch_on_one_rank(observed: Observed) -> None:
    (found,) = warnings_of(observed, BATCH)
    assert (found.code, [one.rank for one in found.culprits]) == ("imbalance-data", [1])
    assert found.victims == (0,)
    assert "100 % more tokens" in found.title


def test_sequences_of_unequal_length(observed: Observed) -> None:
    (found,) = warnings_of(observed, LENGTHS)
    assert (found.code, found.culprits, found.victims) == ("imbalance-data", (), (0, 1))
    assert "length" in found.fixes[0].how


def test_sequences_of_unequal_length_that_nothing_counts(observed: Observed) -> None:
    (found,) = warnings_of(observed, UNCOUNTED)
    assert (found.code, found.culprits, found.victims) == ("imbalance-data", (), (0, 1))
    assert found.cost.step_fraction is not None
    assert 0.1 < found.cost.step_fraction < 0.6


def test_equal_batches_that_nothing_counts_get_no_warning(observed: Observed) -> None:
    assert warnings_of(observed, EQUAL) == []
