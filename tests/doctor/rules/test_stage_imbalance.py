"""imbalance-stage: the stage, its excess and cost, and the layers to move; silent on equal
stages."""

from __future__ import annotations

import pytest

from mgpu_doctor.analysis.measures import measure
from mgpu_doctor.diagnosis import diagnose
from mgpu_doctor.findings import Finding, Severity
from tests.support.pipelines import Pipeline, pipeline_case
from tests.support.rule_limits import equal_counts_as
from tests.support.synthetic import Fault


def findings(job: Pipeline) -> tuple[Finding, ...]:
    return diagnose(pipeline_case(job)).findings


@pytest.mark.parametrize("replicas", [1, 2])
def test_the_slowest_stage_is_named(replicas: int) -> None:
    found, *rest = findings(Pipeline((0.004, 0.004, 0.010, 0.004), 8, replicas=replicas))
    assert rest == []
    assert found.code == "imbalance-stage"
    assert found.severity is Severity.WARNING
    culprits = [culprit.rank for culprit in found.culprits]
    assert culprits == [2, 6][:replicas]
    assert found.victims == tuple(rank for rank in range(4 * replicas) if rank not in culprits)
    works = [item for item in found.evidence if item.measure.startswith("work of stage")]
    assert [work.value for work in works] == pytest.approx([0.012, 0.012, 0.030, 0.012], rel=0.05)
    assert works[0].baseline == pytest.approx(0.0165, rel=0.05)
    bubble = next(item for item in found.evidence if "ranks are idle" in item.measure)
    assert bubble.baseline == pytest.approx(3 / 11)
    assert found.evidence[-1].value == 8


def test_the_larger_stage_is_to_hand_on_layers() -> None:
    (finding,) = findings(Pipeline((0.004, 0.010), parameters=(1000, 3000)))
    assert "too much of the model (3,000 parameters" in finding.cause
    assert [fix.id for fix in finding.fixes] == ["move-layers", "more-micro-batches"]
    move = finding.fixes[0]
    assert "30 % of the work of stage 1" in move.summary
    assert move.predicted is not None
    assert finding.cost.step_fraction is not None
    assert move.predicted.step_time_ratio == pytest.approx(1 - finding.cost.step_fraction)
    assert "n_microbatches=8" in finding.fixes[1].how


def test_a_stage_that_is_no_larger_has_another_reason() -> None:
    (finding,) = findings(Pipeline((0.004, 0.004, 0.010, 0.004), parameters=(10, 10, 10, 10)))
    assert "no larger than the others" in finding.cause
    assert finding.fixes[0].id == "fix-rank"
    equal = diagnose(pipeline_case(Pipeline((0.004,) * 4)))
    slow = diagnose(pipeline_case(Pipeline((0.004, 0.004, 0.010, 0.004))))
    assert equal.step_seconds is not None
    assert slow.step_seconds is not None
    predicted = finding.fixes[0].predicted
    assert predicted is not None
    assert predicted.step_time_ratio == pytest.approx(
        equal.step_seconds / slow.step_seconds, rel=0.05
    )


@pytest.mark.parametrize("stages", [2, 4])
@pytest.mark.parametrize("replicas", [1, 2])
def test_equal_stages_are_silent(stages: int, replicas: int) -> None:
    for seed in range(10):
        job = Pipeline((0.004,) * stages, replicas=replicas, seed=seed, noise=0.1)
        assert findings(job) == ()


def test_a_small_difference_is_silent() -> None:
    assert findings(Pipeline((0.0040, 0.0046))) == ()


@pytest.mark.parametrize(
    ("parameters", "severity"), [((10, 10), Severity.INFO), ((10, 14), Severity.WARNING)]
)
def test_of_equal_stages_a_slight_difference_is_no_warning(
    parameters: tuple[int, ...], severity: Severity
) -> None:
    (finding,) = findings(Pipeline((0.0040, 0.0058), parameters=parameters))
    assert (finding.code, finding.severity) == ("imbalance-stage", severity)


def test_a_stage_that_became_slow_is_a_straggler_alone() -> None:
    (finding,) = findings(Pipeline(faults=[Fault(1, "forward", 12, start=50)]))
    assert finding.code == "straggler-compute"
    assert [culprit.rank for culprit in finding.culprits] == [1]
    assert "longer per step than before, from step" in finding.title
    assert "what it was before" in finding.evidence[0].measure


@pytest.mark.parametrize("milliseconds", [0.6, 1.0])
def test_a_stage_that_drifts_a_little_is_silent(milliseconds: float) -> None:
    """5 and 8 % of its 12 ms: it has no equal that the machine drifts with."""
    assert findings(Pipeline(faults=[Fault(1, "forward", milliseconds, start=50)])) == ()


def test_a_slow_rank_among_equal_pipelines_is_compared_with_its_stage() -> None:
    found = findings(Pipeline(replicas=2, faults=[Fault(5, "backward", 12)]))
    assert [one.code for one in found] == ["straggler-compute"]
    assert [culprit.rank for culprit in found[0].culprits] == [5]
    assert "on the other ranks of its pipeline stage" in found[0].title
    assert "rank 1, which hold the same pipeline stage 1" in found[0].cause


def test_a_stall_now_and_then_is_no_imbalance() -> None:
    job = Pipeline(faults=[Fault(2, "forward", 60, every=10)])
    assert "imbalance-stage" not in [finding.code for finding in findings(job)]


def test_what_equals_a_limit_of_stages_counts() -> None:
    case = pipeline_case(Pipeline((0.0040, 0.0058), parameters=(10, 10)))
    stages = measure(case).stages
    assert stages is not None
    (finding,) = diagnose(case).findings
    for limit, value in (
        ("imbalance", stages.imbalance),
        ("alike", stages.imbalance),
        ("cost", finding.cost.step_fraction),
    ):
        assert equal_counts_as(case, "imbalance-stage", limit, value) == "more"
