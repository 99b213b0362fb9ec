"""`top --record` and the replay of what it wrote: a machine without a job."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec import structs

from mgpu_doctor.case.device_samples import DeviceSample, Ecc, NvLink, Pcie
from mgpu_doctor.case.host_samples import HostSample
from mgpu_doctor.case.recording_case import load_recording
from mgpu_doctor.live.frame import Frame
from mgpu_doctor.live.history_measures import UTILIZATION
from mgpu_doctor.live.history_spans import gaps
from mgpu_doctor.live.live_jobs import LiveJobs
from mgpu_doctor.live.machine_recorder import Recorder
from mgpu_doctor.live.replay import NO_JOB, Replay
from mgpu_doctor.recording.layout import HOSTS, INFO
from mgpu_doctor.recording.write import OccupiedError
from mgpu_doctor.tui.screens.graph_selection import Kind, Lane, Subject, spans
from tests.fakenvml import fakenvml
from tests.support import histories
from tests.support.frames import eight_gpus, gpu
from tests.support.histories import ASLEEP, BEGAN
from tests.support.nvml import PretendNvml


def recorded(folder: Path, seconds: range) -> Path:
    recorder = Recorder(folder, clock=lambda: BEGAN)
    for second in seconds:
        if second not in ASLEEP:
            recorder.write(histories.devices(second), histories.host(second))
    return folder


def readings_of(frame: Frame) -> list[tuple[int, float, float | None, float | None]]:
    assert frame.devices is not None
    at, devices = frame.devices.at, frame.devices.devices
    return [(device.index, at, device.utilization, device.temperature) for device in devices]


def list_survivor_evidence(second: int) -> list[tuple[int, float, float | None, float | None]]:
    """Recorded to three digits."""
    devices = histories.devices(second).devices
    exact = [(device.index, device.utilization, device.temperature) for device in devices]
    return [(index, BEGAN + second, use and round(use, 3), warm) for index, use, warm in exact]


def test_what_was_written_is_read_again(tmp_path: Path) -> None:
    full = gpu(
        0,
        clock_reasons=(),
        pcie=Pcie(4, 16, 5, 16, 1e9, 2e9, 3),
        nvlinks=(NvLink(0, True, "switch", (("crc_flit", 1), ("replay", 0))),),
        ecc=Ecc(0, 1, 0, 1, 2, True, False),
    )
    samples = (DeviceSample(BEGAN, (full,)), DeviceSample(BEGAN + 1, eight_gpus().devices))
    host = HostSample(BEGAN, 63.0, 16, 9.4, 5, 9, {7: (1.5, 4096)}, host="a", pressure={"cpu": 1.0})
    recorder = Recorder(tmp_path / "r")
    for sample in samples:
        recorder.write(sample, host)
    case = load_recording(tmp_path / "r")
    here = os.uname().nodename
    assert case.device_samples == tuple(structs.replace(sample, host=here) for sample in samples)
    assert case.host_samples == (host, host)
    assert [gap.reason.partition(":")[0] for gap in case.unexamined] == [
        "GPUs and host alone were recorded, by `top --record`"
    ]


def test_it_is_private(tmp_path: Path) -> None:
    for path in recorded(tmp_path / "r", range(3)).rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600)


def test_a_replay_shows_the_machine_as_it_was(tmp_path: Path) -> None:
    replay = Replay(recorded(tmp_path / "r", range(2950, 3200)))
    first = replay.frame(0)
    assert first.diagnosis is None
    assert first.hint == NO_JOB
    assert first.replay is not None
    assert (first.replay.start, first.replay.end) == (BEGAN, BEGAN + 3199)
    replay.seek(1)
    last = replay.frame(0)
    assert readings_of(last) == list_survivor_evidence(3199)
    assert last.host is not None
    assert last.history is not None
    known = spans(last.history, Lane(Subject(Kind.GPU, 1), UTILIZATION, ""))
    asleep = (BEGAN + ASLEEP.start - 1, BEGAN + ASLEEP.stop - 1)
    assert gaps(known, BEGAN, BEGAN + 3199, 1) == [asleep]
    replay.step(-100)
    earlier = replay.frame(0)
    assert readings_of(earlier) == list_survivor_evidence(2999)
    assert earlier.history is not None
    before = spans(earlier.history, Lane(Subject(Kind.GPU, 1), UTILIZATION, ""))
    assert before.end.max() == BEGAN + 2999


def test_a_folder_that_holds_something_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    with pytest.raises(OccupiedError):
        Recorder(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_a_disk_in_trouble_costs_the_recording_alone_and_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MGPU_DOCTOR_HOME", str(tmp_path / "home"))
    recorder = Recorder(tmp_path / "r")
    live = LiveJobs(recorder=recorder)
    live.frame(0)
    assert "live  recording to r" in live.frame(0).source
    place = next((tmp_path / "r" / HOSTS).iterdir())
    shutil.rmtree(place)
    live.frame(0)
    without_folder = live.frame(0)
    assert without_folder.source == "live  NOT recording to r: No such file or directory"
    assert without_folder.host is not None
    place.mkdir()
    live.frame(0)
    assert "live  recording to r" in live.frame(0).source


def test_the_recording_says_what_it_is(tmp_path: Path) -> None:
    info = json.loads((recorded(tmp_path / "r", range(1)) / INFO).read_text())
    assert (info["kind"], info["probe"], info["started"]) == ("watch", False, BEGAN)


_LIVE = """
import json, os, sys, time
from pathlib import Path
from mgpu_doctor.live.machine_recorder import Recorder
from mgpu_doctor.live.live_jobs import LiveJobs
live = LiveJobs(recorder=Recorder(Path(sys.argv[1])))
for lost, name in enumerate(sys.argv[2:]):
    os.replace(name, os.environ["FAKENVML_STATE"])
    settled = 0
    for _ in range(2000):
        frame = live.frame(0)
        gpu = frame.devices.devices[1] if len(frame.devices.devices) > 1 else None
        settled += gpu is not None and (gpu.utilization is None) == (lost == 1)
        if settled >= 12:
            break
        time.sleep(0.01)
"""


def test_a_gpu_that_is_lost_and_comes_back_under_record_and_replay(
    nvml: PretendNvml, tmp_path: Path
) -> None:
    state, names = tmp_path / "state", []
    for place, scenario in enumerate(("busy", "lost", "busy")):
        names.append(str(state.with_suffix(f".{place}")))
        box = fakenvml.machine(scenario, gpus=4)
        if scenario == "lost":
            box = fakenvml.machine("busy", gpus=4, fault=["1:*=GPU_IS_LOST"])
        box.write(names[-1])
    done = subprocess.run(
        [sys.executable, "-c", _LIVE, str(tmp_path / "r"), *names],
        env={**nvml.environment(state), "MGPU_DOCTOR_HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    replay = Replay(tmp_path / "r")
    replay.seek(1)
    frame = replay.frame(0)
    assert frame.devices is not None
    assert len(frame.devices.devices) == 4
    assert frame.history is not None
    healthy, lost = (
        spans(frame.history, Lane(Subject(Kind.GPU, index), UTILIZATION, "")) for index in (0, 1)
    )
    samples = load_recording(tmp_path / "r").device_samples
    known = [
        sample.at
        for sample in samples
        if sample.devices and sample.devices[1].utilization is not None
    ]
    away = [
        sample.at
        for sample in samples
        if known[0] < sample.at < known[-1] and sample.at not in known
    ]
    assert len(away) >= 12
    assert gaps(lost, away[0], away[-1], 1e-3) == [(away[0], away[-1])]
    assert gaps(healthy, away[0], away[-1], away[-1] - away[0]) == []
    assert len(lost) == len(known)
