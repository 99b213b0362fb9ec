"""Jobs on simulated GPUs, from the probe's engine and timer through real boxes to the diagnosis."""

from __future__ import annotations

from dataclasses import replace
from math import nan
from pathlib import Path

import pytest
from mgpu_probes.inprocess import layout
from mgpu_probes.inprocess.blackbox import Writer
from mgpu_probes.inprocess.device_clock import is_sampled
from mgpu_probes.inprocess.layout import BACKWARD, FORWARD, INPUT, OPTIMIZER

from mgpu_doctor.analysis.measures import measure
from mgpu_doctor.case.device_times import BoundBy
from mgpu_doctor.case.host_samples import HostSample
from mgpu_doctor.case.model import Case
from mgpu_doctor.case.recording_case import load_recording
from mgpu_doctor.diagnosis import diagnose
from mgpu_doctor.findings import Severity
from tests.support.simulated_gpus.probed_jobs import ProbedRank, accused, train
from tests.support.simulated_gpus.training_scripts import Job
from tests.support.simulated_gpus.virtual_gpus import MS

TURN = 80 * MS
"""About the turn of a `Job`."""


def write_box(folder: Path, number: int, rank: ProbedRank, ranks: int, interval: int) -> None:
    """Steps with the host's times, and the device's times of one step in `interval`."""
    writer = Writer.open(folder, rank=number, local_rank=number, world_size=ranks)
    writer.birth(
        {"framework": "torch", "strategy": "ddp", "device": f"cuda:{number}", "clock": "device"}
    )
    times = {step.record: step for step in rank.device_steps}
    for place, step in enumerate(rank.host_steps):
        seconds = [nanoseconds * 1e-9 for nanoseconds in step.phases]
        seconds[layout.COMMUNICATION] = nan
        writer.step(
            step.end,
            step.end - step.start,
            place,
            0,
            seconds,
            group_seq=step.after[0],
            micro_batches=step.backwards,
        )
        reply = times.get(place - 1)
        if reply is not None and is_sampled(place, interval):
            writer.device_step(reply)
    writer.leave(0)
    writer.close()


def recorded(folder: Path, job: Job, interval: int) -> Case:
    """The job as it is loaded from its boxes."""
    for number, rank in enumerate(train(job, run_ahead=60)):
        write_box(folder, number, rank, job.ranks, interval)
    return load_recording(folder)


def small(turns: int, **changes: object) -> Job:
    return Job(turns=turns, kernels=4, layers=2, noise=0.01, **changes)  # type: ignore[arg-type]


def test_busy_cores_of_its_host_are_no_excuse_for_a_device(tmp_path: Path) -> None:
    case = recorded(tmp_path, small(80, slow={2: {FORWARD: TURN // 10}}), 1)
    busy = HostSample(at=0.0, cores=2, load1=100.0, host=case.ranks[0].host)
    crowded = replace(case, host_samples=(busy,))
    assert measure(crowded).possible_waits == {rank.rank: 1.0 for rank in case.ranks}
    findings = {each.code: each.severity for each in diagnose(crowded).findings}
    assert findings["straggler-compute"] is Severity.WARNING


INTERVALS = pytest.mark.parametrize(("interval", "turns"), [(1, 80), (8, 400)])


@INTERVALS
@pytest.mark.parametrize("phase", [FORWARD, BACKWARD, OPTIMIZER])
def test_a_slow_rank_is_named_with_its_phase(
    tmp_path: Path, phase: int, interval: int, turns: int
) -> None:
    case = recorded(tmp_path, small(turns, slow={2: {phase: TURN // 10}}), interval)
    assert set(accused(case)) == {2}
    (straggler,) = measure(case).stragglers or ()
    by_phase = {name: seconds or 0.0 for name, seconds in straggler.by_phase.items()}
    assert max(by_phase, key=by_phase.__getitem__) == layout.PHASES[phase]
    assert straggler.excess == pytest.approx(0.008, rel=0.2)


@INTERVALS
def test_a_wait_for_data_is_blamed_only_where_the_device_stood_still(
    tmp_path: Path, interval: int, turns: int
) -> None:
    stall = {1: {INPUT: 30 * MS}}
    hidden = recorded(tmp_path / "hidden", small(turns, slow=stall), interval)
    assert accused(hidden) == {}
    exposed = recorded(tmp_path / "exposed", small(turns, slow=stall, reads_loss=True), interval)
    assert accused(exposed) == {1: {"straggler-input"}}


@pytest.mark.parametrize(
    ("reads_loss", "codes", "bounds"),
    [(False, [], {BoundBy.DEVICE}), (True, ["input-bound"], set())],
)
def test_a_host_that_is_ahead_before_the_forward_pass_waits_for_no_data(
    tmp_path: Path, reads_loss: bool, codes: list[str], bounds: set[BoundBy]
) -> None:
    """When backward begins, every host is ahead by a fifth of a step or more, also of a GPU that
    stood still before."""
    stalls = {rank: {INPUT: 30 * MS} for rank in range(4)}
    case = recorded(tmp_path, small(80, slow=stalls, reads_loss=reads_loss), 1)
    measures = measure(case)
    assert [finding.code for finding in diagnose(case).findings] == codes
    assert {*measures.bound_by.values()} == bounds
    assert min(lead.least for lead in measures.run_ahead.values()) > 0.2 * 0.114


def test_kernels_that_take_less_time_than_their_launches_make_a_job_host_bound(
    tmp_path: Path,
) -> None:
    """400 of each phase, launched in 1.6 ms, run for 0.5 ms; a step takes 4.9 ms."""
    short = MS // 2
    job = Job(turns=60, kernels=400, layers=2, forward=short, backward=short, optimizer=short)
    measures = measure(recorded(tmp_path, replace(job, input=MS // 10, transfer=MS // 10), 1))
    assert {*measures.bound_by.values()} == {BoundBy.HOST}
    assert all((lead.most or 1) < 0.0001 for lead in measures.run_ahead.values())


@INTERVALS
def test_a_healthy_job_accuses_nobody_and_runs_ahead(
    tmp_path: Path, interval: int, turns: int
) -> None:
    case = recorded(tmp_path, small(turns), interval)
    measures = measure(case)
    assert accused(case) == {}
    assert measures.stragglers == ()
    assert (measures.stalls is None) == (interval > 1)
    assert set(measures.run_ahead) == {0, 1, 2, 3}
    assert all(ahead.least >= 0 for ahead in measures.run_ahead.values())


def test_without_device_times_no_rank_is_compared(tmp_path: Path) -> None:
    case = recorded(tmp_path, small(60, slow={1: {INPUT: 30 * MS}}), 4096)
    measures = measure(case)
    assert accused(case) == {}
    assert measures.stragglers is None
    assert "devices" in measures.missing["stragglers"].probe
    assert measures.step_seconds == pytest.approx(0.085, rel=0.2)
