"""Real jobs with a planted slow rank: the right rank and cause; healthy jobs without findings.

The scripts of `tests/jobs` know nothing of the doctor.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from mgpu_doctor.findings import Diagnosis, Finding, Severity
from tests.support import observed_jobs
from tests.support.jobs import forked
from tests.support.observed_jobs import Observed, find_finding, list_warnings, median_phases

pytestmark = pytest.mark.slow

diagnose_job = partial(observed_jobs.diagnose_job, launcher=forked)

CODES = {
    "input": "straggler-input",
    "forward": "straggler-compute",
    "backward": "straggler-compute",
    "optimizer": "straggler-optimizer",
    "between": "straggler-other",
}
PHASE_OF = {"between": "other"}
"""The phase in which a planted place lies; the others are called alike."""
STEPS = ("--steps", "60")
SLEEPING_STEPS = dict.fromkeys(CODES, "32") | {"forward": "50"}
"""Fewer decide nothing. The longer job lasts five seconds: the host is sampled once a second."""
HALF_AGAIN = ("--steps", "100", "--percent", "50")
"""The benchmark has smaller ones, on a quiet machine: beside much other work 30 % in 50 steps did
not stand out enough to be reported."""


def assert_named(diagnosis: Diagnosis, code: str, rank: int) -> Finding:
    """The first finding, which is the only one that accuses a rank: this one."""
    first = diagnosis.findings[0]
    assert (first.code, [culprit.rank for culprit in first.culprits]) == (code, [rank])
    assert first.severity is Severity.WARNING
    assert set(first.victims) == {each.rank for each in diagnosis.ranks} - {rank}
    assert [each for each in list_warnings(diagnosis) if each.culprits and each is not first] == []
    return first


@pytest.mark.parametrize("place", CODES)
def test_a_planted_sleep_is_named_and_timed_in_its_phase(tmp_path: Path, place: str) -> None:
    # So long that what a busy machine adds to one rank is small beside it.
    fault = ("--fault", place, "--rank", "1", "--ms", "100")
    diagnosis = diagnose_job(tmp_path, "plain_ddp", "--steps", SLEEPING_STEPS[place], *fault)
    first = assert_named(diagnosis, CODES[place], 1)
    assert find_finding(diagnosis, "straggler-host") is None
    assert place != "forward" or "main thread was idle" in first.cause
    victim, culprit = map(median_phases, diagnosis.case.ranks)
    slow = PHASE_OF.get(place, place)
    assert culprit[slow] - victim[slow] == pytest.approx(0.100, abs=0.025)
    assert victim["wait"] - culprit["wait"] > 0.065
    for other in {PHASE_OF.get(name, name) for name in CODES} - {slow}:
        assert abs(culprit[other] - victim[other]) < 0.025


@pytest.mark.parametrize(
    ("script", "place", "ranks"),
    [
        ("plain_ddp", "backward", 4),
        ("no_loader", "between", 2),
        ("manual_allreduce", "between", 2),
    ],
)
def test_half_a_step_more_is_enough(tmp_path: Path, script: str, place: str, ranks: int) -> None:
    """Some of what `benchmarks.blame` has: all of it takes an hour."""
    slow = ranks - 2 if ranks > 2 else 1
    fault = ("--fault", place, "--rank", str(slow))
    diagnosis = diagnose_job(tmp_path, script, *HALF_AGAIN, *fault, ranks=ranks)
    # Without a module nothing distinguishes the time between steps from forward.
    bare = script == "manual_allreduce" and place == "between"
    first = assert_named(diagnosis, "straggler-compute" if bare else CODES[place], slow)
    assert not bare or "between steps" in first.title


@pytest.mark.parametrize(
    ("script", "ranks"), [("plain_ddp", 4), ("no_loader", 2), ("manual_allreduce", 4)]
)
def test_healthy_jobs_get_no_warning(observed: Observed, script: str, ranks: int) -> None:
    diagnosis = observed.diagnosis(script, *STEPS, ranks=ranks)
    assert list_warnings(diagnosis) == []
    assert diagnosis.coverage is not None
    assert diagnosis.coverage >= 0.9
    assert diagnosis.ranks[0].phases["communication"] is not None


def test_every_rank_slow_in_its_loader_is_a_job_bound_by_input(tmp_path: Path) -> None:
    slow = ("--fault", "input", "--rank", "-1", "--ms", "40")
    diagnosis = diagnose_job(tmp_path, "plain_ddp", "--steps", "80", *slow)
    found = find_finding(diagnosis, "input-bound")
    assert found is not None
    assert list_warnings(diagnosis) == [found]
    assert "slept" in found.cause or "waiting for storage" in found.cause
    assert "num_workers=0" in found.cause
    assert "persistent_workers=True" in found.fixes[0].how
