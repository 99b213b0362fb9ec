"""Phases that the host stamped for a device that works asynchronously accuse nobody.

A GPU's queue hides what the host waits for. Here every rank's steps take equally long by the
device, and one rank's host waits for its loader meanwhile: nobody is slow, and no advice about the
loader would gain anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from mgpu_probes.inprocess.layout import PHASES

from mgpu_doctor.analysis.comparing.compared_run import Run, measured
from mgpu_doctor.analysis.machines.rank_devices import placements
from mgpu_doctor.analysis.measures import measure
from mgpu_doctor.case.model import Case
from mgpu_doctor.case.process_metadata import PhaseClock
from mgpu_doctor.case.rank_device import accelerator, is_host_stamped, phase_clock
from mgpu_doctor.diagnosis import diagnose
from mgpu_doctor.findings import Diagnosis, Severity
from mgpu_doctor.live import history_measures as history
from mgpu_doctor.live.rank_history import rank_spans
from mgpu_doctor.live.step_heatmap import make_heatmap
from tests.support import job_snapshots
from tests.support.gpus import gpus, sampled
from tests.support.job_snapshots import LOOP, ProcessState, SnapshotSeries, collective
from tests.support.synthetic import (
    Fault,
    Synthetic,
    make_case,
    make_rank,
    records,
    synthetic_case,
)

UNMEASURED = "own work and waiting on the devices"
CUDA = {"clock": "host", "backend": "nccl", "framework": "torch", "strategy": "ddp"}
TENSORFLOW = {"clock": "host", "framework": "tensorflow", "strategy": "mirrored"}
STEP, HIDDEN = 0.040, 0.012
"""Seconds of a step on the device, and of a wait for data that the queue hides."""


def hidden_wait(device: str, birth: Mapping[str, Any], ranks: int = 4, waits: int = 1) -> Case:
    """Every step takes 40 ms on every rank. The hosts of the first `waits` ranks after rank 0 spend
    12 ms of that waiting for data, all others wait as long for the device in backward."""
    made = []
    for rank, steps in enumerate(records(Synthetic(ranks=ranks, noise=0.0, spikes=0.0))):
        random = np.random.default_rng(rank)
        fetch = HIDDEN if 1 <= rank <= waits else 0.0003
        steps["phases"] = np.nan
        steps["phases"][:, PHASES.index("input")] = fetch * random.normal(1, 0.03, len(steps))
        for phase, seconds in (("forward", 0.004), ("optimizer", 0.001), ("other", 0.0005)):
            steps["phases"][:, PHASES.index(phase)] = seconds
        explained = np.nansum(steps["phases"], axis=1)
        steps["phases"][:, PHASES.index("backward")] = STEP - explained
        steps["wall_ns"] = int(STEP * 1e9)
        steps["end_ns"] = 10**12 + np.cumsum(steps["wall_ns"])
        name = device.replace("#", str(rank))
        made.append(make_rank(rank, steps, device=name, birth=dict(birth)))
    return make_case(made, framework=birth["framework"], world_size=ranks)


def accuses(diagnosis: Diagnosis) -> list[str]:
    """Codes of findings that name a culprit, warn, or promise a gain."""
    return [
        finding.code
        for finding in diagnosis.findings
        if finding.culprits
        or finding.severity is not Severity.INFO
        or any(fix.predicted and fix.predicted.step_time_ratio for fix in finding.fixes)
    ]


@pytest.mark.parametrize(
    ("device", "birth"),
    [("cuda:#", CUDA), ("gpu:0", TENSORFLOW), ("xpu:#", CUDA), ("cuda:#", {**CUDA, "clock": None})],
)
@pytest.mark.parametrize("waits", [1, 3])
def test_a_wait_that_the_devices_queue_hides_accuses_nobody(
    device: str, birth: Mapping[str, Any], waits: int
) -> None:
    diagnosis = diagnose(hidden_wait(device, birth, waits=waits))
    assert accuses(diagnosis) == []
    reasons = [gap for gap in diagnosis.unexamined if gap.probe == UNMEASURED]
    assert len(reasons) == 1
    assert "4 ranks" in reasons[0].reason
    assert "mgpu-doctor trace" in reasons[0].remedy


@pytest.mark.parametrize("device", ["cuda:#", "gpu:0"])
def test_the_reason_for_which_a_device_is_not_timed_is_reported(device: str) -> None:
    why = "this process computes on several devices: cuda:0, cuda:1"
    (missing,) = (
        gap
        for gap in diagnose(hidden_wait(device, {**CUDA, "untimed": why})).unexamined
        if gap.probe == UNMEASURED
    )
    assert missing.reason.endswith(why)


@pytest.mark.parametrize("device", ["cuda:0", "gpu:0"])
def test_one_gpu_alone_is_not_said_to_wait_for_data(device: str) -> None:
    case = hidden_wait(device, {**CUDA, "strategy": "single"}, ranks=2)
    alone = replace(case, ranks=case.ranks[1:], job=replace(case.job, world_size=1))
    diagnosis = diagnose(alone)
    assert accuses(diagnosis) == []
    assert UNMEASURED in [gap.probe for gap in diagnosis.unexamined]


@pytest.mark.parametrize("phase", ["input", "forward", "backward", "optimizer", "other"])
@pytest.mark.parametrize("every", [1, 20])
@pytest.mark.parametrize("ranks", [2, 4])
def test_no_phase_of_the_host_names_a_rank(phase: str, every: int, ranks: int) -> None:
    fault = Fault(1, phase, milliseconds=40, every=every)
    job = Synthetic(ranks=ranks, birth=CUDA, device="cuda:0", faults=[fault])
    assert accuses(diagnose(synthetic_case(job))) == []


@pytest.mark.parametrize("phase", ["checkpoint", "evaluation"])
def test_stalls_of_the_host_predict_no_gain(phase: str) -> None:
    faults = [Fault(rank, phase, milliseconds=300, every=20) for rank in range(4)]
    job = Synthetic(birth=CUDA, device="cuda:0", faults=faults)
    assert accuses(diagnose(synthetic_case(job))) == []


def test_what_is_not_measured_is_null_with_a_reason() -> None:
    case = hidden_wait("cuda:#", CUDA)
    measures, diagnosis = measure(case), diagnose(case)
    for name in ("coverage", "input_shares", "joined", "attribution", "stragglers", "stalls"):
        assert getattr(measures, name) is None
        assert measures.missing[name].probe == UNMEASURED
    assert measures.step_seconds == pytest.approx(STEP)  # by the wall clock, which is right
    assert diagnosis.coverage is None
    assert diagnosis.coverage_reason
    for rank in diagnosis.ranks:
        assert rank.phases == dict.fromkeys(PHASES)
        assert rank.step_seconds_median == pytest.approx(STEP)
    assert isinstance(make_heatmap(case), str)
    for measure_ in (history.OWN, history.WAIT, history.INPUT):
        assert not len(rank_spans(case.ranks, measure_).mean)
    run = measured("run", case)
    assert isinstance(run, Run)
    assert run.phases == dict.fromkeys(PHASES)
    assert run.in_collectives_reason is not None


def test_the_same_steps_timed_on_the_device_are_compared() -> None:
    """The rule is about the clock, not about GPUs."""
    fault = Fault(1, "input", milliseconds=20)
    job = Synthetic(birth={**CUDA, "clock": "device"}, device="cuda:0", faults=[fault])
    (finding,) = diagnose(synthetic_case(job)).findings
    assert finding.code == "straggler-input"
    assert [culprit.rank for culprit in finding.culprits] == [1]


@pytest.mark.parametrize(
    ("device", "clock", "expected"),
    [
        ("cpu", "cpu", False),
        ("cpu", "host", False),
        (None, "host", False),
        ("cuda:0", "device", False),
        ("cuda:0", "host", True),
        ("cuda:0", "cpu", True),
        ("cuda:0", None, True),
        ("cuda:0", 7, True),
        ("gpu:0", "host", True),
        ("TPU:0", "host", True),
    ],
)
def test_whose_phases_cannot_be_compared(device: Any, clock: Any, expected: bool) -> None:
    rank = make_rank(0, records(Synthetic(ranks=1))[0], device=device, birth={"clock": clock})
    assert is_host_stamped(rank) is expected
    assert phase_clock(rank) in (None, *PhaseClock)


def test_tensorflows_gpus_are_matched_with_the_devices() -> None:
    facts = {**TENSORFLOW, "strategy": "multiworker"}
    job = Synthetic(ranks=2, birth=facts)
    ranks = [
        make_rank(n, steps, device="gpu:0", birth={**facts, "visible_devices": str(n)})
        for n, steps in enumerate(records(job))
    ]
    case = sampled(make_case(ranks, framework="tensorflow"), gpus(2, pids=()))
    gpu = accelerator(case.ranks[1])
    assert gpu is not None
    assert (gpu.index, gpu.visible) == (0, ("1",))
    assert {rank: at.device for rank, at in placements(case).items()} == {
        0: "GPU-0000",
        1: "GPU-0001",
    }
    assert set(measure(case).devices or {}) == {0, 1}


def loading_rank(*, on_device: bool | None) -> SnapshotSeries:
    """Rank 1 is in its loader at nearly every look, while the others wait in a collective."""
    late = [
        ProcessState(
            (*LOOP, "prepare util.py:3"), cpu=at * 0.1, active=True, gil=True, syscall=None
        )
        if at % 10
        else ProcessState(collective(), cpu=at * 0.1)
        for at in range(24)
    ]
    waits = [ProcessState(collective(), cpu=at * 0.01) for at in range(24)]
    seen = {0: waits, 1: late, 2: waits}
    known = {rank: [replace(one, on_device=on_device) for one in of] for rank, of in seen.items()}
    return SnapshotSeries(known, every=0.2, count=24)


@pytest.mark.parametrize("on_device", [True, None])
def test_where_hosts_are_says_nothing_of_devices(on_device: bool | None) -> None:
    diagnosis = diagnose(job_snapshots.case(loading_rank(on_device=on_device).snapshots(), ()))
    assert accuses(diagnosis) == []
    assert any("devices" in gap.reason for gap in diagnosis.unexamined)


def test_where_hosts_are_says_who_is_late_on_cpus() -> None:
    diagnosis = diagnose(job_snapshots.case(loading_rank(on_device=False).snapshots(), ()))
    assert [culprit.rank for finding in diagnosis.findings for culprit in finding.culprits] == [1]
