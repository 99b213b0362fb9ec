"""Real jobs whose ranks have unequal data: always the same rank, changing ranks, and equal data."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.support import observed_jobs
from tests.support.jobs import forked
from tests.support.observed_jobs import list_warnings

pytestmark = pytest.mark.slow

diagnose_job = partial(observed_jobs.diagnose_job, launcher=forked)


def test_twice_the_batch_on_one_rank(tmp_path: Path) -> None:
    (found,) = list_warnings(
        diagnose_job(tmp_path, "uneven_batches", "--uneven", "batch", "--rank", "1")
    )
    assert (found.code, [one.rank for one in found.culprits]) == ("imbalance-data", [1])
    assert found.victims == (0,)
    assert "100 % more tokens" in found.title


def test_sequences_of_unequal_length(tmp_path: Path) -> None:
    (found,) = list_warnings(diagnose_job(tmp_path, "uneven_batches", "--uneven", "lengths"))
    assert (found.code, found.culprits, found.victims) == ("imbalance-data", (), (0, 1))
    assert "length" in found.fixes[0].how


def test_sequences_of_unequal_length_that_nothing_counts(tmp_path: Path) -> None:
    options = ("--uneven", "lengths", "--no-loader")
    (found,) = list_warnings(diagnose_job(tmp_path, "uneven_batches", *options))
    assert (found.code, found.culprits, found.victims) == ("imbalance-data", (), (0, 1))
    assert found.cost.step_fraction is not None
    assert 0.1 < found.cost.step_fraction < 0.6


def test_equal_batches_that_nothing_counts_get_no_warning(tmp_path: Path) -> None:
    assert list_warnings(diagnose_job(tmp_path, "uneven_batches", "--no-loader")) == []
