"""How often the machine's processes are read, by their number."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from mgpu_probes.outside.devices import Devices
from mgpu_probes.outside.host_usage import HostUsage

from mgpu_doctor.case.device_samples import DeviceReader
from mgpu_doctor.live import machine_sampler
from mgpu_doctor.live.frame_source import Pace
from mgpu_doctor.live.machine_recorder import Recorder
from mgpu_doctor.live.machine_sampler import MachineSampler
from tests.fakenvml.fakenvml import machine
from tests.support.nvml import PretendNvml


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The pids that were read, each of which costs a millisecond of an imagined clock."""
    pids: list[int] = []

    def process(_: HostUsage, pid: int) -> list[float | int]:
        pids.append(pid)
        cost.now += 0.001
        return [float(len(pids)), pid]

    cost = Clock()
    monkeypatch.setattr(HostUsage, "_process", process)
    monkeypatch.setattr(
        machine_sampler, "Pace", lambda _clock, _cost, *rest: Pace(clock, cost, *rest), raising=True
    )
    return pids


clock = Clock()


def test_many_are_read_now_and_then_and_what_was_read_stands(read: list[int]) -> None:
    here = MachineSampler()
    many = range(
        1, 5
    )  # four milliseconds, of which 0.1 % of a core allows one look in four seconds
    _, first = here.sample(many)
    clock.now += 3.9
    _, second = here.sample(many)
    assert first is not None
    assert second is not None
    assert len(read) == 4
    assert first.processes == second.processes == {pid: (float(pid), pid) for pid in many}
    assert second.at > first.at
    clock.now += 0.2
    here.sample(many)
    assert len(read) == 8
    here.sample((9,))
    assert read[-1] == 9, "other processes are read at once"
    here.close()


def test_gpus_are_asked_as_often_as_their_number_allows(
    read: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float] = []

    def sample(_: Devices) -> dict[str, Any]:
        asked.append(clock.now)
        cost.now += 0.003  # of which 0.2 % of a core allows two in three seconds
        return {"at": clock.now, "devices": [{"index": 0}]}

    cost = Clock()
    monkeypatch.setattr(Devices, "sample", sample)
    monkeypatch.setattr(
        machine_sampler, "Pace", lambda _clock, _cost, *rest: Pace(clock, cost, *rest), raising=True
    )
    here = MachineSampler()
    begin = clock.now
    seen = []
    for second in range(8):
        clock.now = begin + second
        seen.append(here.sample()[0])
    here.close()
    assert [at - begin for at in asked] == [0, 1, 3, 5, 7], "the first one is no running cost"
    assert seen[1] is seen[2] is not seen[3]
    assert not read


def test_how_long_ago_gpus_were_asked_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def sample(_: Devices) -> dict[str, Any]:
        cost.now += 0.003
        return {"at": 0.0, "devices": [{"index": 0}]}

    now, cost = Clock(), Clock()
    monkeypatch.setattr(Devices, "sample", sample)
    monkeypatch.setattr(machine_sampler, "time", SimpleNamespace(monotonic=now, thread_time=cost))
    here = MachineSampler()
    ages = [here.devices_age]
    for _ in range(6):
        here.sample()
        ages.append(here.devices_age)
        now.now += 1.0
    here.close()
    assert ages == [0, 0, 0, 1, 0, 1, 0]


def test_a_recording_holds_nothing_that_was_read_before(read: list[int], tmp_path: Path) -> None:
    here = MachineSampler(Recorder(tmp_path / "recorded"))
    for _ in range(3):
        here.sample((os.getpid(),))
    assert len(read) == 3
    here.close()


def test_what_stays_the_same_is_left_out_and_nothing_is_lost(
    nvml: PretendNvml, tmp_path: Path
) -> None:
    names = ("h100", "h100", "nvlink_down", "nvlink_down", "lost", "lost", "mig", "h100", "busy")
    raw = list(nvml.samples(tmp_path / "state", *map(machine, names)))
    steady, reader, whole = machine_sampler._SteadyFacts(), DeviceReader("a"), DeviceReader("a")
    short = [steady.leave_out(sample) for sample in raw]
    lines = [machine_sampler._as_line(sample) for sample in short]
    assert [reader.decode(line) for line in lines] == [whole.read(sample) for sample in raw]
    assert len(lines[1]) < len(machine_sampler._as_line(raw[1])) / 3
