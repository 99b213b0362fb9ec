"""Real jobs whose ranks depend on each other in other ways than in data parallelism."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from mgpu_doctor.findings import Diagnosis, Severity
from tests.support import observed_jobs
from tests.support.jobs import forked
from tests.support.observed_jobs import Observed, list_warnings

pytestmark = pytest.mark.slow

diagnose_job = partial(observed_jobs.diagnose_job, launcher=forked)

STEPS = ("--steps", "60")
FEW_STEPS = ("--steps", "40")
"""Of jobs that are slow from the start."""
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


def codes_and_culprits(diagnosis: Diagnosis) -> list[tuple[str, list[int | None]]]:
    """Code and culprits of everything that would disturb somebody and accuses a rank."""
    return [
        (one.code, [culprit.rank for culprit in one.culprits])
        for one in list_warnings(diagnosis)
        if one.culprits
    ]


@pytest.mark.parametrize(
    ("script", "place"),
    [
        ("fsdp2", "forward"),
        ("fsdp2", "backward"),
        ("tensor_parallel", "backward"),  # forward: torch-tp in `test_trainers`
        ("hybrid", "forward"),
    ],
)
def test_the_slow_rank_is_named_through_groups(observed: Observed, script: str, place: str) -> None:
    fault = ("--fault", place, "--rank", "1", *SLOW)
    diagnosis = observed.diagnosis(script, *FEW_STEPS, *fault, ranks=MEETING[script])
    assert codes_and_culprits(diagnosis) == [("straggler-compute", [1])]
    (found,) = (one for one in diagnosis.findings if one.code == "straggler-compute")
    assert WHERE[place] in found.title
    assert found.victims == tuple(rank for rank in range(MEETING[script]) if rank != 1)


def test_the_partner_that_waits_in_compiled_code_is_not_blamed(tmp_path: Path) -> None:
    """Rank 0 waits for rank 1 where `torch.compile` traced the collective; that is no work."""
    options = ("--backend", "aot_eager", "--fault", "forward", "--rank", "1", *SLOW)
    diagnosis = diagnose_job(tmp_path, "compiled_collectives", *FEW_STEPS, *options, ranks=4)
    assert codes_and_culprits(diagnosis) == [("straggler-compute", [1])]


@pytest.mark.parametrize(("script", "ranks"), [*MEETING.items(), *PIPELINES])
def test_nobody_is_blamed_in_a_healthy_job(observed: Observed, script: str, ranks: int) -> None:
    diagnosis = observed.diagnosis(script, *STEPS, ranks=ranks)
    assert codes_and_culprits(diagnosis) == []
    assert diagnosis.coverage is not None
    assert diagnosis.coverage >= 0.9


@pytest.mark.parametrize(("script", "ranks"), [("pipeline_sendrecv", 4), ("pipeline_1f1b", 2)])
def test_a_stage_that_is_slow_from_the_start_is_an_imbalance(
    observed: Observed, script: str, ranks: int
) -> None:
    fault = ("--fault", "forward", "--rank", "1", *SLOW)
    diagnosis = observed.diagnosis(script, *FEW_STEPS, *fault, ranks=ranks)
    assert codes_and_culprits(diagnosis) == [("imbalance-stage", [1])]
    (found,) = (one for one in diagnosis.findings if one.code == "imbalance-stage")
    assert found.severity is Severity.WARNING
    works = [one for one in found.evidence if one.measure.startswith("work of stage")]
    assert len(works) == ranks
    assert works[1].value == max(float(one.value or 0) for one in works)


def test_a_stage_that_became_slow_is_a_straggler(tmp_path: Path) -> None:
    fault = ("--fault", "backward", "--rank", "1", *SLOW, "--after", "30")
    diagnosis = diagnose_job(tmp_path, "pipeline_1f1b", *STEPS, *fault, ranks=4)
    assert codes_and_culprits(diagnosis) == [("straggler-compute", [1])]
    (found,) = (one for one in diagnosis.findings if one.code == "straggler-compute")
    assert found.since_step is not None
    assert abs(found.since_step - 30) <= 3


def test_in_two_pipelines_a_rank_is_compared_with_its_equal(tmp_path: Path) -> None:
    fault = ("--fault", "backward", "--rank", "3", *SLOW)
    options = ("--replicas", "2", *fault)
    diagnosis = diagnose_job(tmp_path, "pipeline_1f1b", *FEW_STEPS, *options, ranks=4)
    assert codes_and_culprits(diagnosis) == [("straggler-compute", [3])]
    (found,) = (one for one in diagnosis.findings if one.code == "straggler-compute")
    assert "its pipeline stage" in found.title


def test_the_optimizer_of_a_stage_is_compared_with_those_of_equal_stages(tmp_path: Path) -> None:
    fault = ("--fault", "optimizer", "--rank", "2", *SLOW)
    diagnosis = diagnose_job(tmp_path, "pipeline_sendrecv", *FEW_STEPS, *fault, ranks=4)
    assert codes_and_culprits(diagnosis) == [("straggler-optimizer", [2])]
