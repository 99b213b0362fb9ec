"""Fixtures that end-to-end tests share: recordings of jobs that run only once."""

from __future__ import annotations

import pytest

from tests.support.observed_jobs import Observed


@pytest.fixture(scope="session")
def observed(tmp_path_factory: pytest.TempPathFactory) -> Observed:
    return Observed(tmp_path_factory)
