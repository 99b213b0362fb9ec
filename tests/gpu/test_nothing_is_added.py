"""The probe adds no synchronization, changes no result and holds a bounded number of events."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from mgpu_probes.inprocess.layout import SKIPPED

from tests.gpu.gpu_jobs import CUDA, Device, Figures, Watched
from tests.support.observed_jobs import find_finding

JOBS = {
    "single": ("--strategy", "single", "--workers", "2"),
    "scaler": ("--strategy", "single", "--overflows", "4", "--accumulate", "2"),
    "ddp": ("--group", "streams", "--strategy", "ddp", "--side-stream", "3"),
    "fsdp": ("--group", "streams", "--strategy", "fsdp"),
}
"""The loader's workers are forked while events are alive, and must end well."""
SHORT = ("--steps", "40")


@pytest.mark.parametrize("name", JOBS)
def test_the_host_waits_no_more_often_and_results_are_the_same(
    device: Device, watch: Callable[..., Watched], figures: Figures, name: str
) -> None:
    """Losses, and calls in which the host waits for the device, are those of the bare job."""
    options = (*JOBS[name], *SHORT, "--counts-waits")
    ranks = 2 if "--group" in options else 1
    bare = device.train(*options, ranks=ranks)
    job = watch(*options, ranks=ranks)
    waits = sum(report["waits"] for report in bare.values())
    figures.note(**{f"{name}_waits": waits})
    for rank, report in job.reports.items():
        for what in ("losses", "scale", "waits"):
            assert report[what] == bare[rank][what]
    for rank in range(ranks):
        job.times(rank, least=3)


@pytest.mark.parametrize("name", ["scaler", "ddp"])
def test_torch_sees_no_synchronization(gpu: Device, name: str, tmp_path: Path) -> None:
    """Under `torch.cuda.set_sync_debug_mode("error")` each one would raise."""
    options = (*JOBS[name], *SHORT, "--forbids-waits")
    job = gpu.watch(tmp_path, *options, ranks=2 if name == "ddp" else 1)
    job.times(0, least=3)


def test_the_loss_is_read_from_the_device(watch: Callable[..., Watched], device: Device) -> None:
    job = watch("--strategy", "single", *device.limited)
    times, losses = job.times(0), job.reports[0]["losses"]
    assert times["loss"].tolist() == pytest.approx([losses[at - 1] for at in times["step_seq"]])
    assert np.isnan(job.ranks[0].steps["loss"]).all(), "the host read it"


def test_a_loss_that_only_the_device_knows_to_be_lost_is_reported(
    watch: Callable[..., Watched],
) -> None:
    job = watch("--strategy", "single", "--nan-from", "20")
    finding = find_finding(job.diagnosis, "loss-nan")
    assert finding is not None
    timed = job.times(0)["step_seq"]
    assert finding.since_step == min(step - 1 for step in timed if step > 20)


def test_an_update_that_only_the_device_knows_to_be_skipped_is_seen(
    watch: Callable[..., Watched],
) -> None:
    """A fused optimizer skips it within its kernel; every fourth one."""
    times = watch("--strategy", "single", "--overflows", "4").times(0)
    skipped = (times["flags"] & SKIPPED) != 0
    assert skipped.tolist() == [step % 4 == 0 for step in times["step_seq"]]


def test_work_in_another_stream_that_is_waited_for_is_no_own_work(
    device: Device, watch: Callable[..., Watched], figures: Figures
) -> None:
    job = watch("--strategy", "single", "--side-stream", "3")
    phases = job.phases(0)
    elsewhere = phases.get("transfer", 0) + phases.get("wait", 0)
    figures.note(side_stream_planted_ms=3, side_stream_seen_ms=elsewhere)
    assert elsewhere == pytest.approx(3, abs=device.tolerance(3))
    assert phases["forward"] == pytest.approx(
        8 * device.scale, abs=device.tolerance(8 * device.scale)
    )


def test_a_job_that_the_host_runs_far_ahead_of_is_still_far_ahead(
    watch: Callable[..., Watched], device: Device, figures: Figures
) -> None:
    """Steps are long, so that a busy host is ahead, too."""
    scale = 4.0
    steps = "40" if device.kind == CUDA else "24"
    long = ("--strategy", "single", "--scale", str(scale), "--steps", steps)
    bare, job = device.train(*long), watch(*long)
    assert bare[0]["ran_ahead"], "the job does not run ahead by itself"
    assert job.reports[0]["ran_ahead"]
    lead = median_lead(job)
    figures.note(run_ahead_ms=lead)
    assert lead > 26 * scale, "more than a step"


def test_a_job_whose_host_waits_in_every_step_is_not_ahead(
    watch: Callable[..., Watched], device: Device, figures: Figures
) -> None:
    """By the forward pass that is queued, and no more."""
    lead = median_lead(watch("--strategy", "single", "--reads-loss"))
    figures.note(run_ahead_with_item_ms=lead)
    assert lead < 10 * device.scale


def test_many_small_kernels_keep_the_host_from_running_ahead(
    watch: Callable[..., Watched], device: Device, figures: Figures
) -> None:
    """The host queues them more slowly than the device computes them."""
    steps = "200" if device.kind == CUDA else "60"
    small = ("--strategy", "single", "--scale", "0", "--blocks", "150", "--steps", steps)
    job = watch(*small)
    step = float(np.median(job.times(0)["wall_ns"])) * 1e-6
    lead = median_lead(job)
    codes = [finding.code for finding in job.diagnosis.findings]
    figures.note(small_kernels={"step_ms": step, "run_ahead_ms": lead, "codes": codes})
    assert lead < 0.25 * step
    large = watch("--strategy", "single", *device.limited)
    assert find_finding(large.diagnosis, "launch-bound") is None


def test_copies_in_a_stream_of_their_own_cost_the_step_nothing(
    watch: Callable[..., Watched], device: Device, figures: Figures
) -> None:
    """What the other ways cost is noted. The pretend device copies little: its host does it."""
    size = "32" if device.kind == CUDA else "1"
    ways = ("prefetched", "pinned", "pageable") if device.kind == CUDA else ("prefetched",)
    usual = ("--strategy", "single", "--copied-mib", size, "--copies")
    seen = {way: watch(*usual, way).phases(0) for way in ways}
    figures.note(copies_phases_ms=seen)
    assert seen["prefetched"].get("transfer", 0) < 0.2
    planted = 8 * device.scale
    assert seen["prefetched"]["forward"] == pytest.approx(
        planted, abs=max(1, 2 * device.tolerance(planted))
    )


def median_lead(job: Watched) -> float:
    """Milliseconds by which the host was ahead when backward began, at least."""
    return float(np.nanmedian(job.times(0)["least_lead"])) * 1e3


def test_events_are_bounded_and_what_they_cost_is_reported(
    watch: Callable[..., Watched], device: Device
) -> None:
    job = watch("--strategy", "single", *device.limited)
    timing = job.metadata(0)["device_timing"]
    assert timing["interval"] >= 1
    assert timing["dropped"] <= len(job.ranks[0].steps) // 10
