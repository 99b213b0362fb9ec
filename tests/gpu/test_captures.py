"""CUDA graphs are captured and replayed as without the probe, and streams overlap as without it."""

from __future__ import annotations

from pathlib import Path

import pytest
from mgpu_probes.inprocess.training_objects import UnseenWaits

from mgpu_doctor.case.recording_case import load_recording
from tests.gpu.gpu_jobs import JOBS, Device, Figures, read_reports, under_doctor
from tests.gpu.jobs.captures import CAPTURES, STEPS, WAYS
from tests.support.jobs import plain, run


@pytest.mark.parametrize("way", WAYS)
def test_captures_stay_valid_and_losses_the_same(gpu: Device, tmp_path: Path, way: str) -> None:
    assert gpu.kind == "cuda"
    command = plain(str(JOBS / "captures.py"), way, ranks=1)
    bare = read_reports(run(command), 1)
    recording = tmp_path / "recording"
    probed = read_reports(run([*under_doctor(recording), *command]), 1)
    assert probed == bare
    if way == "other-thread":
        assert probed[0]["captured"] == CAPTURES
    (rank,) = load_recording(recording).ranks
    assert len(rank.steps) == pytest.approx(STEPS, abs=5), "a replayed step is a step"
    hidden = UnseenWaits.CUDA_GRAPH if way == "collectives" else None
    assert rank.metadata.unseen_waits is hidden


@pytest.mark.parametrize("connections", ["8", "1"])
def test_streams_overlap_as_without_the_probe(
    device: Device,
    figures: Figures,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    connections: str,
) -> None:
    """With one connection the device is not timed, as events would keep streams from
    overlapping."""
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", connections)
    recording = tmp_path / "recording"
    bare = device.run_script("overlap.py")
    probed = device.run_script("overlap.py", doctor=under_doctor(recording))
    name = f"overlap_{connections}_connections"
    figures.note(**{f"{name}_bare_ms": bare["step_ms"], f"{name}_ms": probed["step_ms"]})
    assert probed["step_ms"] == pytest.approx(bare["step_ms"], rel=0.05, abs=0.5)
    (rank,) = load_recording(recording).ranks
    timed = rank.device_times is not None and len(rank.device_times) > 0
    assert timed == (connections != "1")
    if connections != "1":
        assert bare["step_ms"] < 1.5 * bare["alone_ms"], "the streams do not overlap"
