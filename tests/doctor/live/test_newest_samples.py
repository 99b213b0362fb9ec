"""Which samples of a recording of several hosts are shown at a moment."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from mgpu_doctor.case.device_samples import Device, DeviceSample
from mgpu_doctor.live.host_statuses import HOST_GONE
from mgpu_doctor.live.replay import NewestSamples, Replay
from tests.support import multi_host
from tests.support.recordings import HEALTHY, recording


def samples_at(host: str | None, times: Iterable[float]) -> list[DeviceSample]:
    return [DeviceSample(at, (Device(0),), host=host) for at in times]


def shown(newest: NewestSamples, at: float) -> list[tuple[str | None, float]]:
    return [(one.host, one.at) for one in newest.until(at)]


def test_each_host_shows_its_newest_sample_until_then() -> None:
    newest = NewestSamples([*samples_at("b", (1.5, 2.5, 3.5)), *samples_at("a", (1.0, 2.0, 3.0))])
    assert shown(newest, 0.5) == []
    assert shown(newest, 1.2) == [("a", 1.0)]
    assert shown(newest, 2.2) == [("a", 2.0), ("b", 1.5)]
    assert shown(newest, 99.0) == [("a", 3.0), ("b", 3.5)]


def test_a_host_that_tells_no_more_is_left_out_while_others_tell() -> None:
    newest = NewestSamples([*samples_at("a", range(10)), *samples_at("b", range(100))])
    assert shown(newest, 9 + HOST_GONE) == [("a", 9), ("b", 9 + HOST_GONE)]
    assert shown(newest, 10 + HOST_GONE) == [("b", 10 + HOST_GONE)]
    alone = NewestSamples(samples_at(None, range(10)))
    assert shown(alone, 1e6) == [(None, 9)]


def test_a_recording_that_was_thinned_out_shows_all_its_hosts() -> None:
    newest = NewestSamples(
        [*samples_at("a", range(0, 1000, 100)), *samples_at("b", range(0, 1000, 10))]
    )
    assert shown(newest, 90) == [("a", 0), ("b", 90)]


@pytest.mark.parametrize("several", [True, False])
def test_a_replay_shows_the_gpus_of_all_hosts(tmp_path: Path, several: bool) -> None:
    hosts = ("node-b", "node-a", "node-c") if several else ("node-b",)
    folder = recording(tmp_path / "r", (HEALTHY, HEALTHY))
    replay = Replay(folder)
    replay.seek(1)
    end = replay.frame(0).at
    samples = [
        sample for ago in (3, 2, 1, -1) for sample in multi_host.samples(hosts, 2, end - ago)
    ]
    multi_host.record(folder, samples)
    again = Replay(folder)
    again.seek(1)
    frame = again.frame(0)
    assert frame.devices is not None
    there = [*frame.elsewhere, frame.devices]
    assert [one.host for one in there] == sorted(hosts)
    assert [one.at for one in there] == pytest.approx([end - 1] * len(hosts), abs=1e-3)
    assert [len(one.devices) for one in there] == [2] * len(hosts)
    assert (frame.ranks_age, frame.gpus_age) == (0.0, 0.0)
