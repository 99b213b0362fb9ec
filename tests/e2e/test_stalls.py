"""Real jobs that stall periodically: the right rank, cause and period."""

from __future__ import annotations

import pytest

from mgpu_doctor.diagnosis import diagnose
from mgpu_doctor.findings import Diagnosis, Finding
from tests.support.jobs_in_turn import Job, job, trainer_job
from tests.support.observed_jobs import Observed, list_warnings, plan

pytestmark = pytest.mark.slow


def single_warning(diagnosis: Diagnosis) -> Finding:
    """The only finding of at least warning severity."""
    found = list_warnings(diagnosis)
    assert len(found) == 1, [one.title for one in found]
    return found[0]


def stalling(kind: str, who: int) -> Job:
    return job("stalls", "--stall", kind, "--who", str(who), "--every", "20", "--ms", "300")


STALLS = [
    ("gc", 1, "gc-pauses"),
    ("evaluation", 0, "rank0-only-work"),
    ("log", 0, "rank0-only-work"),
]
TOGETHER = job("stalls", "--stall", "evaluation", "--who", "-1")
LONG = job(
    "stalls", "--stall", "log", "--who", "1", "--every", "50", "--ms", "2000", "--steps", "120"
)
plan(*(stalling(kind, who) for kind, who, _ in STALLS), TOGETHER, LONG)


@pytest.mark.parametrize(("stall", "who", "code"), STALLS)
def test_what_stops_every_twentieth_step(
    observed: Observed, stall: str, who: int, code: str
) -> None:
    found = single_warning(diagnose(observed.case_of(stalling(stall, who))))
    assert (found.code, [one.rank for one in found.culprits]) == (code, [who])
    assert found.victims == (1 - who,)
    assert "every 20 steps" in found.title


def test_ranks_that_evaluate_together_get_no_warning(observed: Observed) -> None:
    """What does nothing of the kind: `test_host_causes` has such a job of 300 steps."""
    assert list_warnings(diagnose(observed.case_of(TOGETHER))) == []


OF_TRAINERS = [
    ("stall:rank=1,every=15,ms=300", "straggler-transient", (1,)),
    ("stall:rank=0,every=15,ms=300,kind=save", "checkpoint-stall", (0,)),
    ("stall:rank=all,every=15,ms=150,kind=gc", "gc-pauses", (0, 1)),
]
plan(*(trainer_job("torch-ddp", steps=110, fault=fault) for fault, _, _ in OF_TRAINERS))


@pytest.mark.parametrize(("fault", "code", "culprits"), OF_TRAINERS)
def test_a_trainers_planted_stall(
    observed: Observed, fault: str, code: str, culprits: tuple[int, ...]
) -> None:
    stalled = trainer_job("torch-ddp", steps=110, fault=fault)
    found = single_warning(diagnose(observed.case_of(stalled)))
    assert (found.code, sorted(one.rank or 0 for one in found.culprits)) == (code, [*culprits])
    assert found.victims == tuple(rank for rank in (0, 1) if rank not in culprits)
    assert "every 15 steps" in found.title


def test_two_long_stalls_are_enough(observed: Observed) -> None:
    found = single_warning(diagnose(observed.case_of(LONG)))
    assert (found.code, [one.rank for one in found.culprits]) == ("straggler-transient", [1])
    assert (found.victims, found.evidence[0].value) == ((0,), 2)
