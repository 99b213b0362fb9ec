"""Real jobs slowed by their host: a busy core, too many threads, sleeping loaders.

A CPU quota needs a control group that the tests may not have: `test_task_usage.py` reads one from
made-up files, `test_host_contention.py` judges it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from mgpu_doctor.diagnosis import diagnose
from mgpu_doctor.findings import Diagnosis, Severity
from tests.support.jobs import forked
from tests.support.jobs_in_turn import job
from tests.support.observed_jobs import (
    Observed,
    cores_of_others,
    find_finding,
    list_warnings,
    plan,
    record_job,
)

pytestmark = pytest.mark.slow

WITH_NEIGHBOUR = job("shared_cores", "--steps", "160", "--batch", "256", "--hog", "1")
"""Each step lasts several turns of the scheduler: short ones may be over before a neighbour has its
turn."""
WITHOUT_NEIGHBOUR = job("shared_cores", "--steps", "300")
"""It takes at least five seconds: the host is sampled once a second."""
COMPUTING_LOADER = job(
    "plain_ddp",
    *("--workers", "1", "--fault", "input", "--rank", "-1", "--ms", "40", "--burn"),
    *("--steps", "160"),  # at 80 steps, fast cores were done before two samples of the workers
)
plan(WITH_NEIGHBOUR, WITHOUT_NEIGHBOUR, COMPUTING_LOADER)


def with_threads(folder: Path, threads: int, ranks: int, steps: int = 80) -> Diagnosis:
    environment = {"OMP_NUM_THREADS": str(threads)}
    script = ("plain_ddp", "--model", "cnn", "--steps", str(steps))
    case = record_job(folder, *script, ranks=ranks, environment=environment, launcher=forked)
    return diagnose(case)


def test_a_rank_whose_core_something_else_uses(observed: Observed) -> None:
    diagnosis = diagnose(observed.case_of(WITH_NEIGHBOUR))
    first = diagnosis.findings[0]
    assert (first.code, [one.rank for one in first.culprits]) == ("straggler-host", [1]), first
    assert first.severity is Severity.WARNING
    assert first.victims == (0,)
    assert "waiting for a core" in first.title
    others = [one for one in diagnosis.findings if one is not first and one.culprits]
    assert others == [] or cores_of_others(diagnosis.case) > 0.5


def test_the_same_job_without_the_neighbour(observed: Observed) -> None:
    diagnosis = diagnose(observed.case_of(WITHOUT_NEIGHBOUR))
    # Where the machine has other work meanwhile, a rank that cannot move may really be held up.
    assert list_warnings(diagnosis) == [] or cores_of_others(diagnosis.case) > 0.5


def test_more_threads_than_cores(tmp_path: Path) -> None:
    # The host is sampled once per second, and two samples must lie within the steps.
    diagnosis = with_threads(tmp_path, threads=8, ranks=2, steps=160)
    found = find_finding(diagnosis, "cpu-oversubscribed")
    assert found is not None
    assert found.severity is Severity.WARNING
    assert set(found.victims) == {0, 1}
    assert "OMP_NUM_THREADS=1" in found.fixes[0].how


def test_one_thread_for_each_of_more_ranks_than_cores_is_no_warning(tmp_path: Path) -> None:
    diagnosis = with_threads(tmp_path, threads=1, ranks=3)
    assert list_warnings(diagnosis) == []


def test_a_loader_that_computes(observed: Observed) -> None:
    diagnosis = diagnose(observed.case_of(COMPUTING_LOADER))
    found = find_finding(diagnosis, "input-bound")
    assert found is not None
    assert "computes" in found.cause or "competes" in found.cause, (found.cause, found.evidence)
    assert "num_workers=1" in found.cause or "busy" in found.cause
