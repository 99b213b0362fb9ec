"""straggler-worker, worker-lost and imbalance-device of replicas, from the metadata of a chief or a
strategy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from mgpu_doctor.case.model import Case, JobEnd, Outcome, Rank, State
from mgpu_doctor.case.outcomes import outcome_of
from mgpu_doctor.diagnosis import diagnose
from mgpu_doctor.findings import Finding, Severity
from tests.support.rule_limits import equal_counts_as
from tests.support.synthetic import Synthetic, make_case, make_rank, records


def worker_paces(name: str, middles: list[float], **changes: Any) -> list[Mapping[str, Any]]:
    return [
        {
            name: index,
            "count": 100,
            "newest": 64,
            "quartiles": [0.9 * middle, middle, 1.1 * middle],
            **changes,
        }
        for index, middle in enumerate(middles)
    ]


def job(**birth: Any) -> Case:
    steps = records(Synthetic(ranks=1, steps=100))[0]
    one = make_rank(0, steps, birth={"framework": "tensorflow", "strategy": "ps", **birth})
    return make_case([one], framework="tensorflow", strategy="ps", world_size=1)


def findings_of(case: Case, code: str) -> list[Finding]:
    return [finding for finding in diagnose(case).findings if finding.code == code]


def test_a_slow_worker_is_named_by_its_task() -> None:
    (slow,) = findings_of(
        job(closures=worker_paces("worker", [0.02, 0.05, 0.02])), "straggler-worker"
    )
    assert slow.severity is Severity.WARNING
    (culprit,) = slow.culprits
    assert (culprit.rank, culprit.device) == (None, "/job:worker/replica:0/task:1")
    assert "Worker 1 takes 50 ms" in slow.title
    assert slow.cost.step_fraction == pytest.approx(1 - 120 / 150)
    assert slow.fixes
    assert "cluster.worker[1]" in slow.fixes[0].how


@pytest.mark.parametrize(
    "closures",
    [
        worker_paces("worker", [0.02, 0.021, 0.02]),
        worker_paces("worker", [0.02, 0.05], newest=10),
        worker_paces("worker", [0.02, 0.05], quartiles=[3, 2, 1]),
        worker_paces("worker", [0.02, 0.05], quartiles=["a", None, []]),
        worker_paces("worker", [0.02, 0.05], quartiles=[float("nan"), 1.0, 2.0]),
        "nothing of the kind",
        [7, None],
    ],
)
def test_healthy_workers_and_damaged_facts_name_nobody(closures: Any) -> None:
    assert findings_of(job(closures=closures), "straggler-worker") == []


def test_a_late_replica_is_named_by_its_device() -> None:
    facts = {
        "replica_steps": worker_paces("replica", [0.02, 0.05]),
        "replica_devices": ["cpu:0", "cpu:1"],
    }
    (late,) = findings_of(job(**facts), "imbalance-device")
    assert [culprit.device for culprit in late.culprits] == ["cpu:1"]
    assert "Replica 1 (cpu:1) finishes its gradients 30 ms later per step" in late.title
    assert (
        findings_of(job(replica_steps=worker_paces("replica", [0.02, 0.0205])), "imbalance-device")
        == []
    )


def test_replicas_that_share_cores_may_differ_by_more() -> None:
    """As two healthy ones did on two cores: the second begins when the first has taken them."""
    paces = worker_paces("replica", [0.0039, 0.0055])
    shared = job(replica_steps=paces, replica_devices=["cpu:0", "cpu:1"])
    assert findings_of(shared, "imbalance-device") == []
    apart = {"replica_steps": paces, "replica_devices": ["gpu:0", "gpu:1"]}
    assert len(findings_of(job(**apart, clock="device"), "imbalance-device")) == 1


def test_replicas_on_gpus_are_not_compared_by_the_hosts_clock() -> None:
    late = {
        "replica_steps": worker_paces("replica", [0.02, 0.05]),
        "replica_devices": ["gpu:0", "gpu:1"],
    }
    assert findings_of(job(**late, clock="host"), "imbalance-device") == []


def ended(number: int, steps: int, state: State = State.EXITED, **changes: Any) -> Rank:
    """Steps of 1 s, the first from second 0 on."""
    one = records(Synthetic(ranks=1, steps=steps))[0]
    one["wall_ns"] = 10**9
    one["end_ns"] = (np.arange(steps) + 1) * 10**9
    return make_rank(number, one, state=state, **changes)


def killed(at: float) -> Rank:
    return ended(1, 5, State.DEAD, signal=9, ended=at)


@pytest.mark.parametrize(
    ("ranks", "code", "outcome"),
    [
        ([ended(0, 20, exit_code=0), killed(5.5)], 0, Outcome.COMPLETED),
        ([ended(0, 20, exit_code=0), killed(5.5)], 1, Outcome.FAILED),
        ([ended(0, 6, exit_code=0), killed(5.5)], 0, Outcome.FAILED),
        ([ended(0, 20, exit_code=1), killed(5.5)], 0, Outcome.FAILED),
        ([ended(0, 20, State.DEAD, signal=9, ended=20.5), killed(5.5)], 0, Outcome.FAILED),
    ],
)
def test_a_job_that_went_on_without_a_rank_did_not_fail(
    ranks: list[Rank], code: int, outcome: Outcome
) -> None:
    end = JobEnd(over=True, exit_code=code, at=30.0)
    assert outcome_of(end, ranks, launcher_alive=None) is outcome


def test_who_was_lost_is_reported() -> None:
    case = make_case([ended(0, 20, exit_code=0), killed(5.5)], outcome=Outcome.COMPLETED)
    (lost,) = [finding for finding in diagnose(case).findings if finding.code == "worker-lost"]
    assert lost.severity is Severity.WARNING
    assert [culprit.rank for culprit in lost.culprits] == [1]
    assert lost.title == "Rank 1 was killed by SIGKILL after step 4; the job continued without it"


def test_a_worker_and_a_replica_that_cost_as_much_as_the_limit_are_reported() -> None:
    workers = job(closures=worker_paces("worker", [0.02, 0.05, 0.02]))
    (slow,) = findings_of(workers, "straggler-worker")
    cost = slow.cost.step_fraction
    assert equal_counts_as(workers, "straggler-worker", "cost", cost) == "more"
    replicas = job(replica_steps=worker_paces("replica", [0.02, 0.03]))
    (late,) = findings_of(replicas, "imbalance-device")
    saved = late.cost.step_fraction
    assert equal_counts_as(replicas, "imbalance-device", "late", saved) == "more"
