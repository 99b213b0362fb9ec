"""straggler-host and cpu-oversubscribed: reported if the host is the cause, silent otherwise."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mgpu_doctor.case.model import Case
from mgpu_doctor.diagnosis import diagnose
from mgpu_doctor.findings import Finding, Severity
from mgpu_doctor.rules.settings import Settings
from tests.support.gpus import timed
from tests.support.hosts import ProcessLoad, computing, on_host, sampled, with_worker_threads
from tests.support.rule_limits import equal_counts_as
from tests.support.synthetic import Fault, Synthetic, oversubscribed, synthetic_case

STEP = 0.049
LOST = 0.020 / STEP
"""Of its time, in which the slow rank does not get on."""


def slow(phase: str = "forward", ranks: int = 4, **birth: Any) -> Case:
    fault = Fault(1, phase, milliseconds=20)
    return on_host(synthetic_case(Synthetic(ranks=ranks, faults=[fault], birth=birth)))


def healthy(ranks: int = 4, make: Any = Synthetic, **birth: Any) -> Case:
    return on_host(synthetic_case(make(ranks=ranks, birth=birth)))


def findings_of(case: Case) -> list[Finding]:
    return [finding for finding in diagnose(case).findings if finding.code != "coverage-low"]


def only(case: Case) -> Finding:
    (finding,) = findings_of(case)
    return finding


@pytest.mark.parametrize("phase", ["input", "forward", "backward", "optimizer", "other"])
@pytest.mark.parametrize("ranks", [2, 4])
def test_a_neighbour_on_its_core(phase: str, ranks: int) -> None:
    case = slow(phase, ranks)
    finding = only(sampled(case, {1: ProcessLoad(queued=LOST, cores=(1,))}, outside=1.0))
    assert finding.code == "straggler-host"
    assert finding.severity is Severity.WARNING
    assert [culprit.rank for culprit in finding.culprits] == [1]
    assert finding.victims == tuple(rank for rank in range(ranks) if rank != 1)
    assert "waiting for a core" in finding.title
    assert "1.0 cores busy" in finding.cause
    queueing = finding.evidence[0]
    assert queueing.value == pytest.approx(LOST)
    assert queueing.baseline == 0.0
    move, clear = finding.fixes
    assert "taskset -acp 0-1 1001" in move.how
    assert "the rank's: 1)" in clear.how
    assert move.predicted is not None
    assert move.predicted.step_time_ratio == pytest.approx(0.6, abs=0.05)


def test_a_neighbour_on_the_core_of_a_pool() -> None:
    """TensorFlow's main thread, which only waits, says nothing of it."""
    one = only(
        sampled(with_worker_threads(slow()), {1: ProcessLoad(others_queued=0.9, cores=(1,))})
    )
    assert (one.code, [culprit.rank for culprit in one.culprits]) == ("straggler-host", [1])
    assert "waiting for a core" in one.title
    assert "Its threads waited for a core for all of it" in one.cause
    waited = one.evidence[0]
    assert "main thread" not in f"{one.cause} {waited.measure}"
    assert waited.value == pytest.approx(0.9)
    assert waited.unit == "s/s"


@pytest.mark.parametrize(("queued", "codes"), [(LOST, set()), (0.0, {"straggler-transient"})])
def test_that_it_waits_longer_in_some_steps_is_the_same(queued: float, codes: set[str]) -> None:
    always = Fault(1, "forward", milliseconds=20)
    now_and_then = Fault(1, "forward", milliseconds=80, start=10, every=20)
    case = on_host(synthetic_case(Synthetic(faults=[always, now_and_then], birth={})))
    told = {
        finding.code
        for finding in findings_of(sampled(case, {1: ProcessLoad(queued=queued, cores=(1,))}))
    }
    assert told & {"straggler-transient"} == codes
    assert ("straggler-host" in told) == (not codes)


def test_a_rank_is_not_sent_to_the_core_of_another() -> None:
    pinned = {rank: ProcessLoad(cores=(rank,)) for rank in range(4)}
    finding = only(sampled(slow(), {**pinned, 1: ProcessLoad(queued=LOST, cores=(1,))}))
    assert [fix.id for fix in finding.fixes] == ["clear-cores"]


def test_its_own_threads_on_too_few_cores() -> None:
    finding = only(sampled(slow(threads=2), {1: ProcessLoad(queued=LOST, cores=(1,))}, outside=1.0))
    assert "Its 2 computing threads share 1 core (1)" in finding.cause
    threads = next(fix for fix in finding.fixes if fix.id == "fewer-threads")
    assert threads.how.startswith("OMP_NUM_THREADS=1 torchrun")


@pytest.mark.parametrize(
    ("workers", "named"),
    [
        (0, "Its child processes need 0.9 cores"),
        (1, "The workers of its data loader need 0.9 cores"),
    ],
)
def test_a_process_that_the_rank_started(workers: int, named: str) -> None:
    child = ProcessLoad(running=0.5, queued=0.4)
    case = slow(loaders=[{"workers": workers}])
    finding = only(sampled(case, {1: ProcessLoad(queued=LOST, children=(child,))}))
    assert finding.code == "straggler-host"
    assert named in finding.cause


def test_a_quota() -> None:
    held_up = ProcessLoad(queued=LOST, throttled=0.7, quota=0.5)
    finding = only(sampled(slow(), {1: held_up}))
    assert finding.code == "straggler-host"
    assert "waiting for CPU quota" in finding.title
    assert "0.5 cores' worth" in finding.cause
    measured = {evidence.measure: evidence.value for evidence in finding.evidence}
    assert measured["its CPU quota"] == 0.5
    (fix,) = finding.fixes
    for remedy in ("docker update --cpus 2", "limits.cpu: 2", "CPUQuota=200%"):
        assert remedy in fix.how


def test_memory_that_comes_and_goes() -> None:
    finding = only(sampled(slow("optimizer"), {1: ProcessLoad(faults=50_000, kernel=0.05 + LOST)}))
    assert finding.code == "straggler-host"
    assert "reallocating memory from the kernel" in finding.title
    faults = finding.evidence[0]
    assert faults.value == pytest.approx(50_000, rel=0.01)
    assert faults.baseline == pytest.approx(10)
    (fix,) = finding.fixes
    assert "MALLOC_TRIM_THRESHOLD_=1073741824" in fix.how


def test_fewer_cores_than_the_others() -> None:
    doing = {
        **dict.fromkeys(range(4), ProcessLoad(running=1.0)),
        1: ProcessLoad(running=1.0, cores=(1,)),
    }
    finding = only(sampled(slow(), doing))
    assert finding.code == "straggler-host"
    assert "fewer cores" in finding.title
    assert "1 core (1)" in finding.cause
    assert "taskset -acp 0-1 1001" in finding.fixes[0].how


def test_what_the_host_does_not_explain_stays_what_it_was() -> None:
    finding = only(sampled(computing(slow()), {1: ProcessLoad(queued=0.1 * LOST)}))
    assert finding.code == "straggler-compute"
    assert "computes all that time" in finding.cause
    assert "contention for its cores" in finding.ruled_out


def test_a_rank_that_sleeps_is_reported_so() -> None:
    finding = only(sampled(computing(slow(), {1: 0.020}), {}))
    assert finding.code == "straggler-compute"
    assert "was idle for all of it" in finding.cause


def test_an_unsampled_host_is_said_to_be_unmeasured() -> None:
    finding = only(slow())
    assert finding.code == "straggler-compute"
    expected = {"more data", "contention for its cores", "its CPU quota"}
    assert expected <= {*finding.not_measured}


def test_the_share_is_a_limit() -> None:
    case = sampled(slow(), {1: ProcessLoad(queued=0.7 * LOST)})
    strict = Settings(values={"straggler-host": {"share": 0.9}})
    assert only(case).code == "straggler-host"
    assert [finding.code for finding in diagnose(case, strict).findings] == ["straggler-compute"]


def test_a_cause_that_explains_more_goes_first() -> None:
    """Garbage collection is no fault of the host's."""
    case = slow("other")
    ranks = []
    for rank in case.ranks:
        steps = rank.steps.copy()
        steps["gc_s"] = 0.019 if rank.rank == 1 else 0.0
        ranks.append(replace(rank, steps=steps))
    busy = sampled(replace(case, ranks=tuple(ranks)), {1: ProcessLoad(queued=0.6 * LOST)})
    assert "straggler-host" not in [finding.code for finding in findings_of(busy)]


@pytest.mark.parametrize("make", [Synthetic, oversubscribed])
@pytest.mark.parametrize("queued", [0.0, 0.4])
def test_healthy_jobs_are_silent(make: Any, queued: float) -> None:
    for seed in range(5):
        case = on_host(synthetic_case(make(seed=seed)))
        assert findings_of(sampled(case, dict.fromkeys(range(4), ProcessLoad(queued=queued)))) == []


def crowded(queued: float | None, ranks: int = 2, case: Case | None = None, **facts: Any) -> Case:
    waiting = dict.fromkeys(range(ranks), ProcessLoad(queued=queued))
    return sampled(case or healthy(ranks, threads=2), waiting, **facts)


def test_more_threads_than_cores() -> None:
    finding = only(crowded(0.3))
    assert finding.code == "cpu-oversubscribed"
    assert finding.severity is Severity.WARNING
    assert (finding.culprits, finding.victims) == ((), (0, 1))
    assert finding.title.startswith("4 computing threads of 2 ranks for 2 cores on node")
    assert "30 % of the time" in finding.title
    assert finding.cost.step_fraction == pytest.approx(0.3, abs=0.05)
    (fix,) = finding.fixes
    assert fix.summary == "Give each rank 1 computing thread instead of 2"
    assert fix.how.startswith("OMP_NUM_THREADS=1 torchrun train.py")
    assert fix.predicted is not None
    assert fix.predicted.step_time_ratio == pytest.approx(0.7, abs=0.05)


@pytest.mark.parametrize(
    ("lead", "at_most", "cost"), [(0, 0.001, 0.3), (0.3, 0.4, 0), (0, 0.02, None)]
)
def test_what_threads_without_a_core_cost_devices_depends_on_the_run_ahead(
    lead: float, at_most: float, cost: float | None
) -> None:
    job = Synthetic(ranks=2, birth={"threads": 2, "clock": "device"}, device="cuda:0")
    finding = only(timed(crowded(0.3, case=synthetic_case(job)), lead, at_most))
    share = finding.cost.step_fraction
    assert share is None if cost is None else share == pytest.approx(cost, abs=0.05)
    assert finding.severity is (Severity.WARNING if cost else Severity.INFO)


def test_one_rank_alone_can_have_too_many_threads() -> None:
    finding = only(crowded(0.3, 1, healthy(1, threads=4)))
    assert finding.title.startswith("4 computing threads for 2 cores")
    assert finding.cost.step_fraction == pytest.approx(0.3)


def test_ranks_that_outnumber_the_cores_are_reported_but_no_setting_helps() -> None:
    finding = only(crowded(0.5, 4, healthy(4, threads=1)))
    assert finding.code == "cpu-oversubscribed"
    assert finding.severity is Severity.INFO
    assert "no thread setting" in finding.cause
    assert finding.cost.step_fraction is None
    assert [fix.id for fix in finding.fixes] == ["more-cores"]
    assert "--nproc-per-node 2" in finding.fixes[0].how


def test_threads_that_do_not_wait_do_not_matter() -> None:
    assert findings_of(crowded(0.02)) == []


def test_the_wait_is_a_limit() -> None:
    lenient = Settings(values={"cpu-oversubscribed": {"queueing": 0.5}})
    assert diagnose(crowded(0.3), lenient).findings == ()


def test_a_wait_that_was_not_measured_is_no_warning() -> None:
    finding = only(healthy(2, threads=2, affinity=2))
    assert finding.severity is Severity.INFO
    assert "not measured" in finding.cause


def test_busy_loader_workers_count() -> None:
    worker = ProcessLoad(running=0.7, queued=0.25)
    doing = dict.fromkeys(range(2), ProcessLoad(queued=0.3, children=(worker, worker)))
    loads = {"loaders": [{"workers": 2}], "threads": 1}
    finding = only(sampled(healthy(2, **loads), doing))
    assert "loader workers busy on 3.8 cores" in finding.title
    assert finding.severity is Severity.INFO
    assert [fix.id for fix in finding.fixes] == ["fewer-workers", "more-cores"]


def test_a_rank_that_the_jobs_own_threads_crowd_out_is_no_finding_of_its_own() -> None:
    crowd = dict.fromkeys(range(4), ProcessLoad(queued=0.2))
    case = slow(threads=2)
    finding = only(sampled(case, {**crowd, 1: ProcessLoad(queued=0.2 + LOST)}))
    assert finding.code == "cpu-oversubscribed"
    assert [culprit.rank for culprit in finding.culprits] == [1]


def test_other_work_on_the_host_is_not_the_jobs_own_crowd() -> None:
    crowd = dict.fromkeys(range(4), ProcessLoad(queued=0.2))
    case = slow(threads=2)
    both = findings_of(sampled(case, {**crowd, 1: ProcessLoad(queued=0.2 + LOST)}, outside=1.0))
    assert {one.code for one in both} == {"straggler-host", "cpu-oversubscribed"}


def test_what_equals_a_limit_of_the_host_counts() -> None:
    case = sampled(slow(), {1: ProcessLoad(queued=LOST, cores=(1,))}, outside=1.0)
    cost = only(case).cost.step_fraction
    assert equal_counts_as(case, "straggler-host", "cost", cost) == "more"
    assert equal_counts_as(crowded(0.25), "cpu-oversubscribed", "queueing", 0.25) == "more"


@pytest.mark.parametrize(("kernel", "reported"), [(0.05 + LOST, True), (0.05 + 0.3 * LOST, False)])
def test_a_wait_for_cores_that_was_not_measured_explains_nothing(
    kernel: float, reported: bool
) -> None:
    doing = {rank: ProcessLoad(queued=None) for rank in range(4)}
    doing[1] = ProcessLoad(queued=None, faults=50_000, kernel=kernel)
    case = sampled(slow("optimizer"), doing)
    assert ("straggler-host" in [finding.code for finding in findings_of(case)]) is reported


@pytest.mark.parametrize(("outside", "own"), [(0.24, True), (0.26, False)])
def test_a_quarter_of_a_core_of_others_is_not_the_jobs_own_crowd(outside: float, own: bool) -> None:
    crowd = dict.fromkeys(range(4), ProcessLoad(queued=0.2))
    case = sampled(slow(threads=2), {**crowd, 1: ProcessLoad(queued=0.2 + LOST)}, outside=outside)
    codes = {"cpu-oversubscribed"} if own else {"cpu-oversubscribed", "straggler-host"}
    assert {finding.code for finding in findings_of(case)} == codes
