"""Real jobs with a planted slow rank: the right rank and cause; healthy jobs without findings.

The scripts of `tests/jobs` know nothing of the doctor.
"""

from __future__ import annotations

import pytest

from mgpu_doctor.diagnosis import diagnose
from mgpu_doctor.findings import Diagnosis, Finding, Severity
from tests.support.jobs_in_turn import Job, job
from tests.support.observed_jobs import Observed, find_finding, list_warnings, median_phases, plan

pytestmark = pytest.mark.slow

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


def sleeping(place: str) -> Job:
    """So long that what a busy machine adds to one rank is small beside it."""
    steps = ("--steps", SLEEPING_STEPS[place])
    return job("plain_ddp", *steps, "--fault", place, "--rank", "1", "--ms", "100")


def half_slower(script: str, place: str, ranks: int) -> Job:
    rank = str(ranks - 2 if ranks > 2 else 1)
    return job(script, *HALF_AGAIN, "--fault", place, "--rank", rank, ranks=ranks)


HALF = [
    ("plain_ddp", "backward", 4),
    ("no_loader", "between", 2),
    ("manual_allreduce", "between", 2),
]
"""Some of what `benchmarks.blame` has: all of it takes an hour."""
HEALTHY = [("plain_ddp", 4), ("no_loader", 2), ("manual_allreduce", 4)]
SLOW_LOADERS = job("plain_ddp", "--steps", "80", "--fault", "input", "--rank", "-1", "--ms", "40")
plan(*map(sleeping, CODES))
plan(*(half_slower(*each) for each in HALF), SLOW_LOADERS)
# The last one is healthy, too: test_communication.py.
plan(*(job(script, *STEPS, ranks=ranks) for script, ranks in (*HEALTHY, ("accumulate", 2))))


def assert_named(diagnosis: Diagnosis, code: str, rank: int) -> Finding:
    """The first finding, which is the only one that accuses a rank: this one."""
    first = diagnosis.findings[0]
    assert (first.code, [culprit.rank for culprit in first.culprits]) == (code, [rank])
    assert first.severity is Severity.WARNING
    assert set(first.victims) == {each.rank for each in diagnosis.ranks} - {rank}
    assert [each for each in list_warnings(diagnosis) if each.culprits and each is not first] == []
    return first


@pytest.mark.parametrize("place", CODES)
def test_a_planted_sleep_is_named_and_timed_in_its_phase(observed: Observed, place: str) -> None:
    diagnosis = diagnose(observed.case_of(sleeping(place)))
    first = assert_named(diagnosis, CODES[place], 1)
    assert find_finding(diagnosis, "straggler-host") is None
    assert place != "forward" or "main thread was idle" in first.cause
    victim, culprit = map(median_phases, diagnosis.case.ranks)
    slow = PHASE_OF.get(place, place)
    assert culprit[slow] - victim[slow] == pytest.approx(0.100, abs=0.025)
    assert victim["wait"] - culprit["wait"] > 0.065
    for other in {PHASE_OF.get(name, name) for name in CODES} - {slow}:
        assert abs(culprit[other] - victim[other]) < 0.025


@pytest.mark.parametrize(("script", "place", "ranks"), HALF)
def test_half_a_step_more_is_enough(
    observed: Observed, script: str, place: str, ranks: int
) -> None:
    diagnosis = diagnose(observed.case_of(half_slower(script, place, ranks)))
    slow = ranks - 2 if ranks > 2 else 1
    # Without a module nothing distinguishes the time between steps from forward.
    bare = script == "manual_allreduce" and place == "between"
    first = assert_named(diagnosis, "straggler-compute" if bare else CODES[place], slow)
    assert not bare or "between steps" in first.title


@pytest.mark.parametrize(("script", "ranks"), HEALTHY)
def test_healthy_jobs_get_no_warning(observed: Observed, script: str, ranks: int) -> None:
    diagnosis = observed.diagnosis(script, *STEPS, ranks=ranks)
    assert list_warnings(diagnosis) == []
    assert diagnosis.coverage is not None
    assert diagnosis.coverage >= 0.9
    assert diagnosis.ranks[0].phases["communication"] is not None


def test_every_rank_slow_in_its_loader_is_a_job_bound_by_input(observed: Observed) -> None:
    diagnosis = diagnose(observed.case_of(SLOW_LOADERS))
    found = find_finding(diagnosis, "input-bound")
    assert found is not None
    assert list_warnings(diagnosis) == [found]
    assert "slept" in found.cause or "waiting for storage" in found.cause
    assert "num_workers=0" in found.cause
    assert "persistent_workers=True" in found.fixes[0].how
