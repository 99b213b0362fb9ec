"""Real jobs whose ranks depend on each other in other ways than in data parallelism."""

from __future__ import annotations

import pytest

from mgpu_doctor.diagnosis import diagnose
from mgpu_doctor.findings import Diagnosis, Severity
from tests.support.jobs_in_turn import Job, job
from tests.support.observed_jobs import Observed, list_warnings, plan

pytestmark = pytest.mark.slow

SLOW = ("--ms", "60")
"""Far more than a busy machine makes one rank slower; `test_communication_facts` has some of these
jobs, too."""
MEETING = {"fsdp2": 2, "tensor_parallel": 2, "hybrid": 4}
"""Jobs whose ranks all do the same and meet in collectives of one or of several groups."""
WHERE = {
    "forward": "between the start of forward and the start of backward",  # they have no loader
    "backward": "its backward pass",
}
PIPELINES = [("pipeline_sendrecv", 4), ("pipeline_1f1b", 4)]
UNEVEN_PIPELINES = [("pipeline_sendrecv", 4), ("pipeline_1f1b", 2)]
SLOW_IN_GROUPS = [
    ("fsdp2", "forward"),
    ("fsdp2", "backward"),
    ("tensor_parallel", "backward"),  # forward: torch-tp in `test_trainers`
    ("hybrid", "forward"),
]


def slow_job(
    script: str, place: str, *options: str, rank: int = 1, ranks: int = 4, steps: str = "40"
) -> Job:
    """A job whose rank is slow in this place. Those that are slow from the start take 40 steps."""
    slow = ("--fault", place, "--rank", str(rank), *SLOW)
    return job(script, "--steps", steps, *slow, *options, ranks=ranks)


def healthy_job(script: str, ranks: int) -> Job:
    return job(script, "--steps", "60", ranks=ranks)


COMPILED = slow_job("compiled_collectives", "forward", "--backend", "aot_eager")
SLOW_LATER = slow_job("pipeline_1f1b", "backward", "--after", "30", steps="60")
TWO_PIPELINES = slow_job("pipeline_1f1b", "backward", "--replicas", "2", rank=3)
SLOW_OPTIMIZER = slow_job("pipeline_sendrecv", "optimizer", rank=2)
plan(
    *(slow_job(script, place, ranks=MEETING[script]) for script, place in SLOW_IN_GROUPS),
    *(healthy_job(*each) for each in (*MEETING.items(), *PIPELINES)),
    *(slow_job(script, "forward", ranks=ranks) for script, ranks in UNEVEN_PIPELINES),
)
plan(COMPILED, SLOW_LATER, TWO_PIPELINES, SLOW_OPTIMIZER)


def codes_and_culprits(diagnosis: Diagnosis) -> list[tuple[str, list[int | None]]]:
    """Code and culprits of everything that would disturb somebody and accuses a rank."""
    return [
        (one.code, [culprit.rank for culprit in one.culprits])
        for one in list_warnings(diagnosis)
        if one.culprits
    ]


@pytest.mark.parametrize(("script", "place"), SLOW_IN_GROUPS)
def test_the_slow_rank_is_named_through_groups(observed: Observed, script: str, place: str) -> None:
    diagnosis = diagnose(observed.case_of(slow_job(script, place, ranks=MEETING[script])))
    assert codes_and_culprits(diagnosis) == [("straggler-compute", [1])]
    (found,) = (one for one in diagnosis.findings if one.code == "straggler-compute")
    assert WHERE[place] in found.title
    assert found.victims == tuple(rank for rank in range(MEETING[script]) if rank != 1)


def test_the_partner_that_waits_in_compiled_code_is_not_blamed(observed: Observed) -> None:
    """Rank 0 waits for rank 1 where `torch.compile` traced the collective; that is no work."""
    diagnosis = diagnose(observed.case_of(COMPILED))
    assert codes_and_culprits(diagnosis) == [("straggler-compute", [1])]


@pytest.mark.parametrize(("script", "ranks"), [*MEETING.items(), *PIPELINES])
def test_nobody_is_blamed_in_a_healthy_job(observed: Observed, script: str, ranks: int) -> None:
    diagnosis = diagnose(observed.case_of(healthy_job(script, ranks)))
    assert codes_and_culprits(diagnosis) == []
    assert diagnosis.coverage is not None
    assert diagnosis.coverage >= 0.9


@pytest.mark.parametrize(("script", "ranks"), UNEVEN_PIPELINES)
def test_a_stage_that_is_slow_from_the_start_is_an_imbalance(
    observed: Observed, script: str, ranks: int
) -> None:
    diagnosis = diagnose(observed.case_of(slow_job(script, "forward", ranks=ranks)))
    assert codes_and_culprits(diagnosis) == [("imbalance-stage", [1])]
    (found,) = (one for one in diagnosis.findings if one.code == "imbalance-stage")
    assert found.severity is Severity.WARNING
    works = [one for one in found.evidence if one.measure.startswith("work of stage")]
    assert len(works) == ranks
    assert works[1].value == max(float(one.value or 0) for one in works)


def test_a_stage_that_became_slow_is_a_straggler(observed: Observed) -> None:
    diagnosis = diagnose(observed.case_of(SLOW_LATER))
    assert codes_and_culprits(diagnosis) == [("straggler-compute", [1])]
    (found,) = (one for one in diagnosis.findings if one.code == "straggler-compute")
    assert found.since_step is not None
    assert abs(found.since_step - 30) <= 3


def test_in_two_pipelines_a_rank_is_compared_with_its_equal(observed: Observed) -> None:
    diagnosis = diagnose(observed.case_of(TWO_PIPELINES))
    assert codes_and_culprits(diagnosis) == [("straggler-compute", [3])]
    (found,) = (one for one in diagnosis.findings if one.code == "straggler-compute")
    assert "its pipeline stage" in found.title


def test_the_optimizer_of_a_stage_is_compared_with_those_of_equal_stages(
    observed: Observed,
) -> None:
    diagnosis = diagnose(observed.case_of(SLOW_OPTIMIZER))
    assert codes_and_culprits(diagnosis) == [("straggler-optimizer", [2])]
