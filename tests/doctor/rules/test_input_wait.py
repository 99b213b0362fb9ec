"""Waiting for data: on one rank, on all ranks, and the fixes for the loader at hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from mgpu_probes.inprocess.layout import BATCH_READY

from mgpu_doctor.case.host_samples import HostSample
from mgpu_doctor.case.model import Case
from mgpu_doctor.diagnosis import diagnose
from mgpu_doctor.findings import Finding, Severity
from mgpu_doctor.rules.settings import DEFAULTS, Settings
from tests.support.gpus import timed
from tests.support.hosts import ProcessLoad, computing, on_host, sampled
from tests.support.metadata import with_metadata
from tests.support.rule_limits import equal_counts_as
from tests.support.synthetic import BASE, Fault, Synthetic, synthetic_case


def job_with_input(seconds: float, *, ranks: int = 4, **loader: Any) -> Synthetic:
    birth = {"loaders": [loader]} if loader else {}
    return Synthetic(ranks=ranks, base={**BASE, "input": seconds}, birth=birth)


def only(job: Synthetic, cpu: float | None = None) -> Finding:
    samples = (HostSample(1500.0, cpu, 2, None, None, None),) if cpu is not None else ()
    (finding,) = diagnose(replace(synthetic_case(job), host_samples=samples)).findings
    return finding


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_all_ranks_wait_for_data(ranks: int) -> None:
    finding = only(job_with_input(0.010, ranks=ranks))
    assert finding.code == "input-bound"
    assert finding.severity is Severity.WARNING
    assert finding.culprits == ()
    assert finding.victims == tuple(range(ranks))
    assert finding.cost.step_fraction == pytest.approx(0.27, abs=0.03)


def test_a_device_that_still_had_work_waited_for_no_data() -> None:
    """One rank whose host is ahead is enough: then not all ranks wait."""
    job = replace(job_with_input(0.010), device="cuda:0", birth={"clock": "device"})
    waiting = timed(synthetic_case(job), 0.008, 0.009)  # ahead again, but not before the forward
    assert [finding.code for finding in diagnose(waiting).findings] == ["input-bound"]
    assert diagnose(timed(waiting, 0.3, 0.4, only=[2])).findings == ()


def test_a_slow_fetch_that_a_gpu_fills_with_work_is_no_idle_time() -> None:
    fault = Fault(1, "input", milliseconds=20)
    job = Synthetic(faults=[fault], device="cuda:0", birth={"clock": "device"})
    for lead, fills in ((0.3, True), (0.0, False)):
        (finding,) = diagnose(timed(synthetic_case(job), lead, lead + 0.001)).findings
        assert finding.code == "straggler-input"
        assert ("work on the GPU" in finding.cause) is fills


@pytest.mark.parametrize(("milliseconds", "reported"), [(0.5, False), (4.0, True)])
def test_of_tensorflow_the_call_alone_is_no_wait(milliseconds: float, reported: bool) -> None:
    base = {name: seconds / 10 for name, seconds in BASE.items()}
    job = Synthetic(ranks=1, base={**base, "input": milliseconds / 1e3})
    case = synthetic_case(job)
    case = replace(case, job=replace(case.job, framework="tensorflow"))
    assert ("input-bound" in {finding.code for finding in diagnose(case).findings}) is reported


@pytest.mark.parametrize(("workers", "reported"), [(0, False), (None, True), (2, True)])
def test_a_batch_that_takes_no_longer_than_a_workers_is_no_wait(
    workers: int | None, reported: bool
) -> None:
    base = {name: seconds / 20 for name, seconds in BASE.items()}
    birth = {"loaders": [{} if workers is None else {"workers": workers}]}
    job = Synthetic(ranks=2, base={**base, "input": 0.9e-3}, birth=birth)
    assert (
        "input-bound" in {finding.code for finding in diagnose(synthetic_case(job)).findings}
    ) is reported


@pytest.mark.parametrize(
    ("loader", "cause", "how"),
    [
        ({"workers": 0}, "num_workers=0", "num_workers=4, persistent_workers=True"),
        ({"workers": 4, "prefetch_factor": 2}, "cannot keep up", "num_workers=8"),
        ({}, "not measured", "in the background"),
    ],
)
def test_cause_and_fix_know_the_settings(loader: dict[str, int], cause: str, how: str) -> None:
    finding = only(job_with_input(0.010, **loader))
    assert cause in finding.cause
    assert how in finding.fixes[0].how


def test_busy_cores_make_more_workers_useless() -> None:
    finding = only(job_with_input(0.010, workers=4), cpu=97.0)
    assert "97 % busy" in finding.cause
    assert "more workers would not help" in finding.fixes[0].how
    assert "keep up" in only(job_with_input(0.010, workers=4), cpu=50.0).cause


@pytest.mark.parametrize(
    ("seconds", "cpu", "severity"),
    [
        (0.004, 97.0, Severity.INFO),
        (0.004, 50.0, Severity.WARNING),
        (0.010, 97.0, Severity.WARNING),
    ],
)
def test_a_short_wait_is_only_noted_where_no_core_is_left(
    seconds: float, cpu: float, severity: Severity
) -> None:
    assert only(job_with_input(seconds, workers=0), cpu=cpu).severity is severity


def restarting(every: int = 12, **loader: Any) -> Finding | None:
    """Data comes at once but for the first step of every epoch."""
    faults = [Fault(rank, "input", milliseconds=150, start=4, every=every) for rank in range(4)]
    described = {"workers": 2, "persistent_workers": False, "batches": 12, **loader}
    job = replace(job_with_input(0.001, **described), faults=faults)
    return next(
        (finding for finding in diagnose(synthetic_case(job)).findings if "input" in finding.code),
        None,
    )


def test_workers_that_are_started_for_each_epoch() -> None:
    found = restarting()
    assert found is not None
    assert "restarts its 2 workers for each epoch of 12 batches" in found.cause
    assert "takes 15" in found.cause
    assert found.fixes[0].how.startswith("`DataLoader(..., persistent_workers=True)`")


@pytest.mark.parametrize(
    "other", [{"persistent_workers": True}, {"batches": 100}, {"batches": None}, {"every": 7}]
)
def test_waits_that_are_no_epochs_beginning(other: dict[str, Any]) -> None:
    found = restarting(**other)
    assert found is not None
    assert "restarts" not in found.cause


def test_no_workers_is_the_cause_even_on_busy_cores() -> None:
    finding = only(job_with_input(0.010, workers=0), cpu=97.0)
    assert "num_workers=0" in finding.cause
    assert "97 % busy" in finding.fixes[0].how
    assert "busy" not in only(job_with_input(0.010, workers=0), cpu=50.0).fixes[0].how


def test_little_input_is_silent() -> None:
    assert diagnose(synthetic_case(job_with_input(0.0025))).findings == ()


def test_one_slow_loader_is_a_straggler_not_a_bound_job() -> None:
    slow = Synthetic(
        birth={"loaders": [{"workers": 2, "persistent_workers": True}]},
        faults=[Fault(3, "input", milliseconds=20)],
    )
    finding = only(slow)
    assert finding.code == "straggler-input"
    assert [culprit.rank for culprit in finding.culprits] == [3]
    assert "100 %" in finding.cause
    assert "num_workers=2 now" in finding.fixes[0].how
    assert "persistent_workers=True" not in finding.fixes[0].how


def test_input_that_explains_little_of_the_gap_is_not_the_cause() -> None:
    faults = [Fault(1, "input", milliseconds=4), Fault(1, "forward", milliseconds=16)]
    assert only(Synthetic(faults=faults)).code == "straggler-compute"


def sampled_job(
    doing: ProcessLoad,
    *,
    wait: float = 0.010,
    idle: float = 0.0,
    cpu: float = 50.0,
    **loader: Any,
) -> Case:
    case = on_host(synthetic_case(job_with_input(wait, **loader)))
    case = computing(case, dict.fromkeys(range(4), idle))
    return sampled(case, dict.fromkeys(range(4), doing), cpu_percent=cpu)


def bound(case: Case, settings: Settings = DEFAULTS) -> Finding:
    return next(
        finding for finding in diagnose(case, settings).findings if finding.code == "input-bound"
    )


LONG_SLEEP = {"wait": 0.100, "idle": 0.090}
"""A wait that is long compared with the rest of the step (26 ms): most of the sleep is in it."""


def test_without_workers_sleep_and_computation_are_distinguished() -> None:
    asleep = bound(sampled_job(ProcessLoad(), **LONG_SLEEP, workers=0))
    assert "waiting for storage, a network, a lock or a sleep" in asleep.cause
    computes = bound(sampled_job(ProcessLoad(), workers=0))
    assert "which takes CPU time" in computes.cause
    for one in (asleep, computes):
        assert "num_workers=0" in one.cause
        assert "num_workers=4" in one.fixes[0].how


def idle_shares(finding: Finding) -> list[Any]:
    return [
        evidence.value for evidence in finding.evidence if "main thread slept" in evidence.measure
    ]


@pytest.mark.parametrize(
    ("wait", "idle", "cause"),
    [
        (0.010, 0.000, "takes CPU time"),
        (0.010, 0.009, "between 0 % and 9"),
        (0.010, 0.020, "between 0 % and 100 %"),
        (0.010, 0.035, "waiting for storage"),
        (0.100, 0.060, "between 3"),
        (0.100, 0.090, "waiting for storage"),
    ],
)
def test_a_sleep_counts_as_the_loaders_only_if_the_rest_of_the_step_is_too_short_for_it(
    wait: float, idle: float, cause: str
) -> None:
    """Only the CPU time of whole steps is known, so the forward pass may have slept."""
    found = bound(sampled_job(ProcessLoad(), wait=wait, idle=idle, workers=0))
    assert cause in found.cause
    least, most = idle_shares(found)
    rest = sum(BASE.values()) - BASE["input"]
    assert least == pytest.approx(max(0.0, idle - rest) / wait, abs=0.1)
    assert most == pytest.approx(min(1.0, idle / wait), abs=0.1)


def test_of_two_ranks_a_sleep_of_one_is_not_averaged_with_the_other() -> None:
    case = on_host(synthetic_case(job_with_input(0.100, ranks=2, workers=0)))
    case = sampled(computing(case, {0: 0.100, 1: 0.0}), {})
    found = bound(case)
    assert "unknown" in found.cause
    assert idle_shares(found) == pytest.approx([0.0, 1.0], abs=0.1)


def test_a_main_thread_that_is_often_seen_waiting_for_a_disk() -> None:
    assert (
        "waiting for a disk"
        in bound(sampled_job(ProcessLoad(state="D"), **LONG_SLEEP, workers=0)).cause
    )


def test_busy_cores_matter_to_what_computes_only() -> None:
    asleep = bound(sampled_job(ProcessLoad(), **LONG_SLEEP, cpu=97.0, workers=0))
    assert "busy" not in asleep.fixes[0].how
    computes = bound(sampled_job(ProcessLoad(), cpu=97.0, workers=0))
    assert "97 % busy: do less" in computes.fixes[0].how


@pytest.mark.parametrize(
    ("worker", "cause", "how"),
    [
        (ProcessLoad(running=0.05), "sleeps most of the time, waiting for storage", "cost no core"),
        (ProcessLoad(running=0.05, state="D"), "waiting for a disk", "cost no core"),
        (ProcessLoad(running=0.8, queued=0.1), "computes all the time", "cores are free"),
        (ProcessLoad(running=0.5), "too few, or the dataset", "profile"),
    ],
)
def test_workers_that_sleep_and_workers_that_compute(
    worker: ProcessLoad, cause: str, how: str
) -> None:
    one = bound(sampled_job(ProcessLoad(children=(worker, worker)), workers=2, prefetch_factor=2))
    assert cause in one.cause
    assert how in one.fixes[0].how
    assert "num_workers=4, prefetch_factor=4" in one.fixes[0].how
    measured = {evidence.measure: evidence.value for evidence in one.evidence}
    worked = measured["share of time in which a worker ran or waited for a core"]
    assert worked == pytest.approx(worker.running + (worker.queued or 0))


def test_workers_that_sleep_do_not_need_the_busy_cores() -> None:
    asleep = ProcessLoad(children=(ProcessLoad(running=0.05),))
    one = bound(sampled_job(asleep, cpu=99.0, workers=1))
    assert "sleeps most of the time" in one.cause
    busy = ProcessLoad(children=(ProcessLoad(running=0.95),))
    assert "99 % busy" in bound(sampled_job(busy, cpu=99.0, workers=1)).cause


def test_a_used_up_quota_is_as_good_as_busy_cores() -> None:
    throttled = ProcessLoad(throttled=0.3, quota=1.0, children=(ProcessLoad(running=0.95),))
    one = bound(sampled_job(throttled, workers=1))
    assert "CPU quota is used up" in one.cause
    assert "more workers would not help" in one.fixes[0].how


@pytest.mark.parametrize("share", [0.4, 0.6])
def test_batches_that_are_ready_take_long_to_receive(share: float) -> None:
    case = sampled_job(
        ProcessLoad(children=(ProcessLoad(running=0.05),)), workers=1, persistent_workers=True
    )
    for rank in case.ranks:
        rank.steps["flags"][: int(share * len(rank.steps))] |= BATCH_READY
    found = bound(case)
    received = share > 0.5
    assert found.severity is (Severity.INFO if received else Severity.WARNING)
    assert ("Receiving it from the worker process" in found.cause) == received
    assert ("waiting for storage" in found.cause) != received
    assert (found.fixes[0].predicted is None) == received


def test_one_batch_ahead_is_little() -> None:
    asleep = ProcessLoad(children=(ProcessLoad(running=0.05),))
    one = bound(sampled_job(asleep, workers=1, prefetch_factor=1))
    assert "only one batch ahead" in one.cause
    assert "prefetch_factor=2" in one.fixes[0].how


def test_a_loop_without_a_loader() -> None:
    asleep = bound(sampled_job(ProcessLoad(), **LONG_SLEEP))
    assert "does not overlap with training, and mostly waits" in asleep.cause
    assert "computes or sleeps" in bound(sampled_job(ProcessLoad(), idle=0.009)).cause
    assert "Making a batch takes CPU time" in bound(sampled_job(ProcessLoad())).cause


def test_its_constants_are_limits() -> None:
    case = sampled_job(ProcessLoad(), cpu=80.0, workers=0)
    lower = Settings(values={"input-bound": {"saturated": 0.75}})
    assert "busy" not in bound(case).fixes[0].how
    assert "80 % busy" in bound(case, lower).fixes[0].how
    strict = Settings(values={"input-bound": {"share": 0.9}})
    assert diagnose(case, strict).findings == ()


@pytest.mark.parametrize(
    ("replicas", "wait", "divided"), [(2, 4e-3, 1), (2, 9e-3, 0), (1, 4e-3, 0)]
)
def test_dividing_a_batch_over_replicas_takes_time_whatever_makes_it(
    replicas: int, wait: float, divided: bool
) -> None:
    """1.4 to 1.8 ms were measured on healthy jobs with batches that were there."""
    base = {**BASE, "input": wait, "forward": 0.004, "backward": 0.006}
    birth = {"framework": "tensorflow", "strategy": "mirrored", "replicas": replicas}
    finding = only(Synthetic(ranks=1, base=base, birth=birth))
    assert finding.code == "input-bound"
    assert finding.severity is (Severity.INFO if divided else Severity.WARNING)
    assert ("Splitting a batch" in finding.cause) == divided


def test_what_equals_a_limit_of_input_counts() -> None:
    case = sampled_job(ProcessLoad(), cpu=75.0, workers=0)
    share = bound(case).evidence[0].value
    assert isinstance(share, float)
    for limit, value, side in (
        ("share", share, "more"),
        ("strong", share, "more"),
        ("saturated", 0.75, "more"),
    ):
        assert equal_counts_as(case, "input-bound", limit, value) == side


@pytest.mark.parametrize(
    ("doing", "limit", "value", "side"),
    [
        (ProcessLoad(children=(ProcessLoad(running=0.75),)), "computes", 0.75, "more"),
        (ProcessLoad(children=(ProcessLoad(running=0.25),)), "computes", 0.75, "more"),
        (ProcessLoad(children=(ProcessLoad(running=0.5),)), "computes", 0.25, None),
    ],
)
def test_what_workers_do_at_a_limit(
    doing: ProcessLoad, limit: str, value: float, side: str | None
) -> None:
    case = sampled_job(doing, workers=1)
    assert equal_counts_as(case, "input-bound", limit, value) == side


@pytest.mark.parametrize(("others", "divided"), [(2, True), (1, False)])
def test_a_wait_is_for_dividing_if_all_ranks_divide(others: int, divided: bool) -> None:
    base = {**BASE, "input": 4e-3, "forward": 0.004, "backward": 0.006}
    birth = {"framework": "tensorflow", "strategy": "mirrored", "replicas": 2}
    case = synthetic_case(Synthetic(ranks=2, base=base, birth=birth))
    other = with_metadata(case.ranks[1], replicas=others)
    found = bound(replace(case, ranks=(case.ranks[0], other)))
    assert ("Splitting a batch" in found.cause) is divided


@pytest.mark.parametrize(
    ("wait", "idle", "cause"),
    [
        (0.010, 0.0045, "takes CPU time"),
        (0.010, 0.0055, "unknown"),
        (0.100, 0.073, "unknown"),
        (0.100, 0.079, "waiting for storage"),
    ],
)
def test_half_of_the_wait_asleep_is_a_wait(wait: float, idle: float, cause: str) -> None:
    """The rest of the step takes 26 ms."""
    assert cause in bound(sampled_job(ProcessLoad(), wait=wait, idle=idle, workers=0)).cause
