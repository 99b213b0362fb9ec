"""Steps timed by the device's clock, on a pretend GPU whose operations take exactly the given time.

torch's own DistributedDataParallel and fully_shard run on it, with streams, events and the threads
of autograd's engine; the compiler that builds it must be there. What holds on a GPU, too, is tested
in tests/gpu, on this device as well: this file has what only the group of this device shows.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from mgpu_probes.inprocess.layout import PHASES

from mgpu_doctor.case.device_times import BoundBy
from mgpu_doctor.case.model import DevicePosition, Rank
from mgpu_doctor.case.process_metadata import PhaseClock
from mgpu_doctor.case.recording_case import load_recording
from mgpu_doctor.diagnosis import diagnose
from mgpu_doctor.findings import Diagnosis
from tests.support import pretend_deepspeed
from tests.support.jobs import forked, plain, run, started, until
from tests.support.observed_jobs import find_finding, list_warnings, read_ranks

pytestmark = pytest.mark.slow


class Watched(NamedTuple):
    """A job that ran under the doctor."""

    reports: dict[int, dict[str, Any]]
    """What each rank printed at its end: `losses`, and how often it made the host wait."""
    ranks: Sequence[Rank]
    diagnosis: Diagnosis


def run_job(build: Path, *options: str, ranks: int = 2, doctor: Sequence[str] = ()) -> Any:
    """What each rank printed at its end."""
    launcher = forked if ranks > 1 else plain
    command = launcher("pretend_gpus.py", "--build", str(build), *options, ranks=ranks)
    ended = run([*doctor, *command])
    assert ended.code == 0, ended.err
    printed = [json.loads(line) for line in ended.out.splitlines() if line.startswith('{"rank"')]
    assert len(printed) == ranks
    return {report["rank"]: report for report in printed}


@pytest.fixture(scope="module")
def watch(pretend_build: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Watched]:
    """Runs a job under the doctor, once for the same options."""

    @cache
    def watch(*options: str, ranks: int = 2) -> Watched:
        recording = tmp_path_factory.mktemp("jobs") / "recording"
        doctor = (sys.executable, "-m", "mgpu_doctor", "run", "-q", "--dir", str(recording), "--")
        reports = run_job(pretend_build, *options, ranks=ranks, doctor=doctor)
        case = load_recording(recording)
        return Watched(reports, case.ranks, diagnose(case))

    return watch


@pytest.fixture(scope="module")
def deepspeed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a stand-in for DeepSpeed: the real one compiles code for a device."""
    folder = tmp_path_factory.mktemp("packages")
    runtime = folder / "deepspeed" / "runtime"
    runtime.mkdir(parents=True)
    for package in (runtime.parent, runtime):
        (package / "__init__.py").touch()
    shutil.copy(pretend_deepspeed.__file__, runtime / "engine.py")
    return folder


def medians(rank: Rank) -> dict[str, float]:
    """Phase -> median ms on the device, of the phases that take any time."""
    times = rank.device_times
    assert times is not None
    assert len(times) >= 20, "too few steps were timed"
    middle = np.median(np.nan_to_num(times["phases"][1:]), axis=0) * 1e3
    return {phase: ms for phase, ms in zip(PHASES, middle, strict=True) if ms > 0.01}


HEALTHY = {"transfer": 4, "forward": 8, "backward": 16, "wait": 0.2, "optimizer": 2}
LIMITED = ("--usual-limit", "--steps", "300")
"""Of jobs of which the probe times as many steps as it may; of the others it times every step."""
SAMPLED = [("ddp", "backward"), ("allreduce --no-loader", "forward")]
"""Strategies with `LIMITED`, and the phase in which rank 1 works longer."""


@pytest.mark.parametrize(
    ("strategy", "phase"),
    [
        *SAMPLED,
        ("ddp --copies 4", "transfer"),
        ("fsdp", "forward"),
        ("gradients --no-loader", "optimizer"),
        ("calls --steps 140", "forward"),  # its loop is known after some sixty steps
        ("buffers", "forward"),
    ],
)
def test_the_rank_that_works_longer_is_named(
    watch: Callable[..., Watched], strategy: str, phase: str
) -> None:
    """Rank 1 works 3 ms longer, and rank 0 waits for just that."""
    limited = LIMITED if (strategy, phase) in SAMPLED else ()
    options = f"--strategy {strategy} --slow 1:{phase}:3".split()
    _, (innocent, slow), diagnosis = watch(*options, *limited)
    mine, theirs = medians(innocent), medians(slow)
    usual = HEALTHY[phase] + (HEALTHY["backward"] if strategy.startswith("calls") else 0)
    assert theirs[phase] == pytest.approx(usual + 3, abs=0.5)
    assert mine[phase] == pytest.approx(usual, abs=0.5)
    assert mine["wait"] - theirs["wait"] == pytest.approx(3, abs=0.5)
    for rank in (innocent, slow):
        times = rank.device_times
        assert times is not None
        seconds = np.nansum(times["phases"], axis=1)
        assert seconds == pytest.approx(times["wall_ns"] * 1e-9, abs=1e-6)
    (finding,) = list_warnings(diagnosis)
    assert finding.code == f"straggler-{'optimizer' if phase == 'optimizer' else 'compute'}"
    assert [culprit.rank for culprit in finding.culprits] == [1]
    assert finding.cost.seconds_per_step == pytest.approx(0.003, abs=0.0005)


@pytest.mark.parametrize(("strategy", "phase"), [("zero2", "backward"), ("zero3", "forward")])
def test_waits_of_deepspeed_are_no_work(
    watch: Callable[..., Watched], deepspeed: Path, strategy: str, phase: str
) -> None:
    """Its host waits for a stream of collectives, and at stage 3 its modules wait for weights. A
    turn has many marks, so all its work takes twice as long here."""
    options = ("--strategy", strategy, "--packages", str(deepspeed), "--scale", "2")
    _, (innocent, slow), diagnosis = watch(*options, "--slow", f"1:{phase}:9")
    mine, theirs = medians(innocent), medians(slow)
    assert theirs[phase] - mine[phase] == pytest.approx(9, abs=1.5)
    assert mine[phase] == pytest.approx(2 * HEALTHY[phase], abs=1.5)
    assert mine["wait"] - theirs["wait"] == pytest.approx(9, abs=3)
    (finding,) = list_warnings(diagnosis)
    assert finding.code == f"straggler-{'optimizer' if phase == 'optimizer' else 'compute'}"
    assert [culprit.rank for culprit in finding.culprits] == [1]


@pytest.mark.parametrize(
    ("options", "backward"),
    [("--optimizers two", 16), ("--optimizers sharded", 16), ("--checkpointing", 24)],
)
def test_ways_to_train_have_the_same_phases(
    watch: Callable[..., Watched], options: str, backward: float
) -> None:
    """Rank 1 works 4 ms longer in each backward pass. Checkpointing computes the forward pass
    again in it."""
    _, ranks, diagnosis = watch("--slow", "1:backward:4", *options.split())
    innocent, slow = map(medians, ranks)
    for rank, excess in ((innocent, 0), (slow, 4)):
        assert rank["forward"] == pytest.approx(8, abs=0.5)
        assert rank["backward"] == pytest.approx(backward + excess, abs=0.5)
        assert rank["optimizer"] == pytest.approx(2, abs=0.5)
    assert innocent["wait"] - slow["wait"] == pytest.approx(4, abs=0.5)
    (finding,) = list_warnings(diagnosis)
    assert finding.code == "straggler-compute"
    assert [culprit.rank for culprit in finding.culprits] == [1]


@pytest.mark.parametrize(
    ("options", "is_named"),
    [
        ("--scaler", True),
        ("--strategy tensor", True),
        ("--strategy pipeline", False),
        ("--strategy localsgd", False),
    ],
)
def test_the_slow_rank_or_nobody_is_named(
    watch: Callable[..., Watched], options: str, is_named: bool
) -> None:
    """Rank 1 works 12 ms longer in each backward pass. Stages of a pipeline may differ, and under
    local SGD the timed steps may all be such as wait for nobody."""
    chosen = ("--scale", "2", "--slow", "1:backward:12", *options.split())
    _, (innocent, slow), diagnosis = watch(*chosen)
    assert medians(innocent)["backward"] == pytest.approx(2 * HEALTHY["backward"], abs=1)
    assert medians(slow)["backward"] == pytest.approx(2 * HEALTHY["backward"] + 12, abs=1.5)
    blamed = {culprit.rank for finding in list_warnings(diagnosis) for culprit in finding.culprits}
    assert blamed <= {1}
    assert blamed or not is_named


def test_an_optimizer_in_the_backward_pass_is_no_part_of_it(
    watch: Callable[..., Watched],
) -> None:
    watched = watch("--strategy", "single", "--optimizers", "backward", ranks=1)
    expected = {phase: HEALTHY[phase] for phase in ("forward", "backward", "optimizer")}
    assert medians(watched.ranks[0]) == pytest.approx(expected, abs=0.3)


def test_a_healthy_job_raises_no_alarm(watch: Callable[..., Watched]) -> None:
    diagnosis = watch("--strategy", "fsdp").diagnosis
    assert not list_warnings(diagnosis)
    for rank in diagnosis.ranks:
        assert (rank.clock, rank.bound_by) == (PhaseClock.DEVICE, BoundBy.DEVICE)
        assert rank.run_ahead is not None
        assert rank.run_ahead.least > 0.026  # a step


@pytest.mark.parametrize(("strategy", "phase"), SAMPLED)
def test_ranks_time_the_same_steps(
    watch: Callable[..., Watched], strategy: str, phase: str
) -> None:
    """Where one rank times fewer steps, all are among those of the other, unless it was the one
    that timed more at another time."""
    options = f"--strategy {strategy} --slow 1:{phase}:3".split()
    numbers = []
    for rank in watch(*options, *LIMITED).ranks:
        assert rank.device_times is not None
        numbers.append(set(rank.device_times["step_seq"].tolist()))
    assert len(numbers[0] & numbers[1]) >= 0.9 * min(map(len, numbers))


def test_one_gpu_with_a_loop_of_its_own_is_timed(watch: Callable[..., Watched]) -> None:
    """No process group, no loader and no wrapped module."""
    watched = watch("--strategy", "single", "--no-loader", "--nan-from", "20", ranks=1)
    (rank,), diagnosis = watched.ranks, watched.diagnosis
    assert medians(rank) == pytest.approx(
        {phase: HEALTHY[phase] for phase in ("forward", "backward", "optimizer")}, abs=0.2
    )
    times = rank.device_times
    assert times is not None
    losses = [watched.reports[0]["losses"][at - 1] for at in times["step_seq"]]
    seen = np.where(np.isinf(times["loss"]), np.nan, times["loss"])
    assert seen.tolist() == pytest.approx(losses, nan_ok=True)
    assert find_finding(diagnosis, "loss-nan") is not None


def test_the_loss_is_read_from_the_device(watch: Callable[..., Watched]) -> None:
    watched = watch("--strategy", "ddp", "--slow", "1:backward:3", *LIMITED)
    for rank in watched.ranks:
        times = rank.device_times
        assert times is not None
        losses = [watched.reports[rank.rank or 0]["losses"][at - 1] for at in times["step_seq"]]
        assert times["loss"].tolist() == pytest.approx(losses)


def test_the_probe_waits_for_nothing_and_changes_nothing(
    watch: Callable[..., Watched], pretend_build: Path
) -> None:
    """Losses and the number of synchronizations are those of the bare job."""
    options = ("--strategy", "gradients", "--steps", "60")
    assert watch(*options).reports == run_job(pretend_build, *options)


ENDLESS = {"fsdp": "backward", "ddp": "optimizer"}
"""Strategy -> phase of step 5 in which rank 1's device works for ever."""


def test_the_rank_whose_device_does_not_go_on_is_named(pretend_build: Path, tmp_path: Path) -> None:
    """Every host waits for its own device. Steps of 300 ms are all timed. The two jobs mostly wait,
    so they run at once."""
    doctor = (sys.executable, "-m", "mgpu_doctor", "run", "--dir")
    with ExitStack() as jobs:
        running = {}
        for strategy, phase in ENDLESS.items():
            chosen = ("--strategy", strategy, "--endless", f"1:{phase}:5", "--scale", "12")
            script = plain("pretend_gpus.py", "--build", str(pretend_build), *chosen, ranks=3)
            command = [*doctor, str(tmp_path / strategy), "--", *script]
            running[strategy] = jobs.enter_context(started(command))
        for strategy, job in running.items():
            until(partial(are_in_place, tmp_path / strategy))
            check_hang(tmp_path / strategy, ENDLESS[strategy])
            assert job.poll() is None, strategy


def are_in_place(recording: Path) -> bool:
    """Whether no device has passed a mark for longer than the rule asks for."""
    time.sleep(0.5)
    places = [rank.device_position for rank in read_ranks(recording)]
    seconds = [at.seen - at.since for at in places if isinstance(at, DevicePosition)]
    return len(seconds) == 3 and min(seconds) > 11


def check_hang(recording: Path, phase: str) -> None:
    """Examined from outside, rank 1 is named with the phase of its device."""
    pid = load_recording(recording).ranks[0].pid
    command = [sys.executable, "-m", "mgpu_doctor", "diagnose", str(pid), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1, done.stderr
    (finding,) = (one for one in json.loads(done.stdout)["findings"] if one["severity"] != "info")
    assert (finding["code"], finding["severity"]) == ("hang-rank-behind", "critical")
    assert [one["rank"] for one in finding["culprits"]] == [1]
    assert (finding["victims"], finding["since_step"]) == ([0, 2], 5)
    (device,) = (row for row in finding["evidence"] if row["measure"] == "device of rank 1")
    assert phase in device["value"]
    kept = load_recording(recording)
    assert kept.job_snapshots, "`run` noticed the hang by itself"
