"""Two ranks that share one device: the slow one is named, its excess is right, nobody else is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.gpu.gpu_jobs import Device, Figures, Watched
from tests.support.observed_jobs import find_finding, list_warnings

TWO = {"ranks": 2}
STEP = 26.0
"""Milliseconds of a step, times the device's scale; nobody waits."""
PHASES = ("forward", "backward", "optimizer")


def shared(strategy: str, *options: str, group: str = "streams") -> tuple[str, ...]:
    return ("--group", group, "--strategy", strategy, *options)


def check_slow_rank(
    device: Device, job: Watched, figures: Figures, phase: str, share: float
) -> None:
    """Rank 1 is named, works longer by what was planted, and rank 0 waits for just that."""
    planted = STEP * device.scale * share
    mine, theirs = job.phases(0), job.phases(1)
    seen = theirs[phase] - mine[phase]
    name = f"slow_{phase}_{round(share * 100)}_percent"
    figures.note(**{f"{name}_planted_ms": planted, f"{name}_seen_ms": seen})
    assert seen == pytest.approx(planted, abs=device.tolerance(planted))
    waited = mine["wait"] - theirs["wait"]
    assert waited == pytest.approx(planted, abs=2 * device.tolerance(planted))
    (finding,) = list_warnings(job.diagnosis)
    assert finding.code == f"straggler-{'optimizer' if phase == 'optimizer' else 'compute'}"
    assert [culprit.rank for culprit in finding.culprits] == [1]
    saved = finding.cost.seconds_per_step
    assert saved is not None
    assert saved * 1e3 == pytest.approx(planted, abs=2 * device.tolerance(planted))


def slow(device: Device, phase: str, share: float) -> tuple[str, ...]:
    """Options by which rank 1 works longer by this share of a step."""
    return ("--slow", f"1:{phase}:{STEP * device.scale * share}")


@pytest.mark.parametrize("phase", PHASES)
def test_the_rank_whose_device_works_longer_is_named(
    device: Device, watch: Callable[..., Watched], figures: Figures, phase: str
) -> None:
    limited = device.limited if phase == "backward" else ()
    job = watch(*shared("ddp", *slow(device, phase, 0.10)), *limited, **TWO)
    check_slow_rank(device, job, figures, phase, 0.10)
    figures.keep(f"ddp-slow-{phase}", job.recording)


@pytest.mark.parametrize(("phase", "share"), [("forward", 0.30), ("backward", 0.05)])
def test_a_little_and_much_more_work_are_named(
    gpu: Device, figures: Figures, tmp_path: Path, phase: str, share: float
) -> None:
    job = gpu.watch(tmp_path, *shared("ddp", *slow(gpu, phase, share)), **TWO)
    check_slow_rank(gpu, job, figures, phase, share)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "allreduce"])
def test_a_healthy_job_raises_no_alarm(
    watch: Callable[..., Watched], figures: Figures, strategy: str
) -> None:
    job = watch(*shared(strategy), **TWO)
    assert not list_warnings(job.diagnosis)
    for rank in (0, 1):
        times = job.times(rank, least=3)
        seconds = np.nansum(times["phases"], axis=1)
        assert seconds == pytest.approx(times["wall_ns"] * 1e-9, abs=1e-6)
    figures.keep(f"{strategy}-healthy", job.recording)


@pytest.mark.parametrize("strategy", ["fsdp", "allreduce"])
def test_the_slow_rank_of_other_strategies_is_named(
    device: Device, watch: Callable[..., Watched], strategy: str
) -> None:
    job = watch(*shared(strategy, *slow(device, "backward", 0.2)), **TWO)
    (finding,) = list_warnings(job.diagnosis)
    assert finding.code == "straggler-compute"
    assert [culprit.rank for culprit in finding.culprits] == [1]


def test_ranks_time_the_same_steps(device: Device, watch: Callable[..., Watched]) -> None:
    job = watch(*shared("ddp", *slow(device, "backward", 0.10)), *device.limited, **TWO)
    numbers = [set(job.times(rank)["step_seq"].tolist()) for rank in (0, 1)]
    assert len(numbers[0] & numbers[1]) >= 0.8 * min(map(len, numbers))


def test_accumulated_passes_are_one_step(device: Device, watch: Callable[..., Watched]) -> None:
    """Rank 1's forward passes take longer; gradients are reduced in the second of two passes."""
    planted = STEP * device.scale * 0.2
    job = watch(*shared("ddp", "--accumulate", "2", "--slow", f"1:forward:{planted}"), ranks=2)
    steps = job.ranks[1].steps
    assert (steps["micro_batches"][WARMED:] == 2).all()
    seen = job.phases(1)["forward"] - job.phases(0)["forward"]
    assert seen == pytest.approx(planted, abs=device.tolerance(planted))
    (finding,) = list_warnings(job.diagnosis)
    assert [culprit.rank for culprit in finding.culprits] == [1]


WARMED = 3
"""Steps in which the loop is learned."""
LOADER = 9.0
"""Milliseconds by which the loader of rank 1 is slower, times the scale."""


def test_a_slow_loader_that_the_queued_work_hides_is_nobodys_fault(
    device: Device, watch: Callable[..., Watched]
) -> None:
    job = watch(*shared("ddp", "--slow", f"1:input:{LOADER * device.scale}"), **TWO)
    assert job.phases(1).get("input", 0) < 1
    assert not list_warnings(job.diagnosis)


def test_a_slow_loader_that_the_device_waits_for_is_named(
    device: Device, watch: Callable[..., Watched], figures: Figures
) -> None:
    """The same where `loss.item()` empties the queue in every step."""
    stall = LOADER * device.scale
    job = watch(*shared("ddp", "--slow", f"1:input:{stall}", "--reads-loss"), **TWO)
    seen = job.phases(1)["input"]
    figures.note(loader_planted_ms=stall, loader_seen_ms=seen)
    assert seen == pytest.approx(stall, abs=1.5 + device.tolerance(stall))
    finding = find_finding(job.diagnosis, "straggler-input")
    assert finding is not None
    assert [culprit.rank for culprit in finding.culprits] == [1]


def test_three_percent_name_the_slow_rank_or_nobody(
    gpu: Device, figures: Figures, tmp_path: Path
) -> None:
    job = gpu.watch(tmp_path, *shared("ddp", *slow(gpu, "backward", 0.03)), **TWO)
    culprits = {each.rank for finding in list_warnings(job.diagnosis) for each in finding.culprits}
    figures.note(three_percent_named=bool(culprits))
    assert culprits <= {1}


@pytest.mark.parametrize("phase", ["none", "backward"])
def test_with_gloo_on_cuda_tensors(gpu: Device, tmp_path: Path, phase: str) -> None:
    """gloo copies gradients through the host, which waits: its waits are waits all the same."""
    options = () if phase == "none" else slow(gpu, phase, 0.2)
    job = gpu.watch(tmp_path, *shared("ddp", *options, group="gloo"), ranks=2)
    found = [(each.code, [c.rank for c in each.culprits]) for each in list_warnings(job.diagnosis)]
    assert found == ([] if phase == "none" else [("straggler-compute", [1])])
