"""Phases on the device against three measures that are not ours: events of the training's own,
kernels in a trace of torch's profiler, and the logger of DistributedDataParallel."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median

import pytest
from mgpu_probes.inprocess.layout import BACKWARD, FORWARD, OPTIMIZER, WAIT

from mgpu_doctor.case.recording_case import load_recording
from mgpu_doctor.check.kernel_spans import read_trace
from tests.gpu.gpu_jobs import CUDA, Device, Figures, under_doctor

PHASES = {"forward": FORWARD, "backward": BACKWARD, "optimizer": OPTIMIZER}
ERROR_SECONDS, ERROR_SHARE = 50e-6, 0.02
BUSY_HOST_SECONDS = 5e-3
"""On the pretend device the CPU computes, so it is idle now and then: what the host does between
two measurements counts."""
FIRST = 10
"""Steps before it are a warm-up."""


def allowed(device: Device, seconds: float) -> float:
    least = ERROR_SECONDS if device.kind == CUDA else BUSY_HOST_SECONDS
    return max(least, ERROR_SHARE * seconds)


def test_phases_of_a_transformer(device: Device, figures: Figures, tmp_path: Path) -> None:
    """One rank, so nobody waits. GPT-2 small on a GPU; the pretend device records no kernels."""
    on_gpu = device.kind == CUDA
    recording, trace = tmp_path / "recording", tmp_path / "trace.json"
    group, model, batch = ("nccl", "gpt2_small", 4) if on_gpu else ("pretend", "gpt_nano", 1)
    chosen = ("--group", group, "--model", model, "--batch", str(batch), "--trace", str(trace))
    report = device.run_script("phase_truth.py", *chosen, doctor=under_doctor(recording))
    (rank,) = load_recording(recording).ranks
    assert rank.device_times is not None
    phases = {int(each["step_seq"]) - 1: each["phases"] for each in rank.device_times}
    timed = [number for number in phases if number >= FIRST]
    assert len(timed) >= 10

    errors: dict[str, list[float]] = {}
    lengths: dict[str, list[float]] = {}
    kernels = read_trace(json.loads(trace.read_text(encoding="utf-8"))) if on_gpu else None
    for number in timed:
        for place, (name, at) in enumerate(PHASES.items()):
            seen, own = float(phases[number][at]), report["own"][number][place]
            if name == "backward":  # its end waits for the all-reduce, if of this rank alone
                seen += float(phases[number][WAIT])
            errors.setdefault(f"{name} own", []).append(abs(seen - own))
            lengths.setdefault(f"{name} own", []).append(own)
            if kernels is not None and name in kernels.phases.get(number, {}):
                bounds = kernels.phases[number][name]
                errors.setdefault(f"{name} kernels", []).append(bounds.error(seen))
                lengths.setdefault(f"{name} kernels", []).append(bounds.least)
            logged = report["logged"][number]
            if logged is not None and place < len(logged):
                errors.setdefault(f"{name} DDP", []).append(abs(seen - logged[place]))
                lengths.setdefault(f"{name} DDP", []).append(logged[place])
    medians = {name: median(each) for name, each in errors.items()}
    figures.note(phase_error_seconds=medians)
    wrong = {
        name: error
        for name, error in medians.items()
        if error > allowed(device, median(lengths[name]))
    }
    assert not wrong
    measures = ("own", "kernels") if on_gpu else ("own",)
    assert {f"{name} {measure}" for name in PHASES for measure in measures} <= medians.keys()


@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "allreduce"])
def test_one_rank_of_the_device_s_own_backend_is_timed(
    device: Device, tmp_path: Path, strategy: str
) -> None:
    """`Work.wait`, FSDP2's and plain collectives of NCCL: phases are there and add up."""
    group = "nccl" if device.kind == CUDA else "pretend"
    options = ("--group", group, "--strategy", strategy, "--steps", "60")
    job = device.watch(tmp_path, *options)
    times = job.times(0, least=5)
    assert (times["wall_ns"] > 0).all()
    phases = job.phases(0)
    for name, milliseconds in {"forward": 8, "backward": 16, "optimizer": 2}.items():
        planted = milliseconds * device.scale
        assert phases[name] == pytest.approx(planted, abs=max(1.0, 2 * device.tolerance(planted)))
