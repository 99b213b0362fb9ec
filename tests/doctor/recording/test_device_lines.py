"""devices.jsonl stays small, and the values left out are restored on reading."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mgpu_doctor.case.device_samples import DeviceReader, DeviceSample, device_sample
from mgpu_doctor.recording.device_lines import WHOLE_EVERY, DeviceLines


def gpu(index: int, **changes: Any) -> dict[str, Any]:
    return {
        "index": index,
        "vendor": "nvidia",
        "name": "NVIDIA H100 80GB HBM3",
        "uuid": f"GPU-{index}",
        "utilization": 0.5,
        "memory_used": 1 << 36,
        "memory_total": 80 << 30,
        "clock_reasons": [],
        "fan": None,
        "mig": False,
        "unified_memory": False,
        "pcie": {"generation": 5, "width": 16, "replays": 0, "sent": 5.0, "received": None},
        "nvlinks": [
            {"link": link, "up": True, "remote": "switch", "errors": [["replay", 0]]}
            for link in range(18)
        ],
        "ecc": {"corrected": 0, "uncorrected": 0, "pending": False},
        "instances": [],
        "processes": [{"pid": 100 + index, "memory": 1 << 36, "kind": "compute"}],
        "pids": [100 + index],
        "trouble": None,
        **changes,
    }


def sample(at: float, *devices: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"at": at, "devices": list(devices), "trouble": None, "events": [], **more}


def written(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def read(path: Path) -> list[DeviceSample]:
    reader = DeviceReader()
    return [found for line in written(path) if (found := reader.read(line)) is not None]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "devices.jsonl"


def test_reading_gives_back_what_was_sampled(path: Path) -> None:
    lines = DeviceLines(path)
    ill = gpu(1, trouble="GPU is lost", name=None, nvlinks=[], pcie=None, ecc=None, pids=[])
    samples = [
        sample(1.0, gpu(0), gpu(1), took=0.01, driver="570"),
        sample(2.0, gpu(0, utilization=0.7), gpu(1)),
        sample(3.0, gpu(0), {**ill, "processes": []}),
        sample(4.0, gpu(0), gpu(1, ecc={"corrected": 3})),
        sample(5.0, gpu(0), gpu(1, ecc={"corrected": 3})),
    ]
    for one in samples:
        lines.append(one)
    assert read(path) == [device_sample(sample) for sample in samples]


def test_what_is_as_before_is_left_out(path: Path) -> None:
    lines = DeviceLines(path)
    for at in range(3):
        lines.append(sample(at, gpu(0)))
    first, second, _ = written(path)
    assert "nvlinks" in first["devices"][0]
    assert "fan" not in first["devices"][0]  # unknown
    assert second["devices"][0] == {
        "index": 0,
        "same": True,
        "utilization": 0.5,
        "memory_used": 1 << 36,
        "clock_reasons": [],
        "pids": [100],
        "processes": [{"pid": 100, "memory": 1 << 36, "kind": "compute"}],
        "pcie": {"sent": 5.0},
    }


def test_a_change_writes_that_device_whole_and_no_other(path: Path) -> None:
    lines = DeviceLines(path)
    lines.append(sample(1, gpu(0), gpu(1)))
    lines.append(sample(2, gpu(0), gpu(1, ecc={"uncorrected": 1})))
    devices = written(path)[1]["devices"]
    assert [device.get("same", False) for device in devices] == [True, False]


def test_each_device_is_whole_now_and_then(path: Path) -> None:
    lines = DeviceLines(path)
    for at in range(2 * WHOLE_EVERY + 1):
        lines.append(sample(at, gpu(0)))
    whole = [place for place, line in enumerate(written(path)) if "name" in line["devices"][0]]
    assert whole == [0, WHOLE_EVERY, 2 * WHOLE_EVERY]


def test_thinned_lines_lose_neither_names_nor_events_nor_the_topology(path: Path) -> None:
    lines = DeviceLines(path, limit=40_000)
    topology = {"levels": [["SELF"]], "peer": [["OK"]]}
    for at in range(1000):
        changed = gpu(0, ecc={"corrected": at // 100})
        events = [{"at": 501.0, "index": 0, "number": 79}] if at == 501 else []
        lines.append(sample(at, changed, events=events, topology=None if at else topology))
    found = read(path)
    assert path.stat().st_size <= 40_000
    assert 0 < len(found) < 500
    assert {one.devices[0].name for one in found} == {"NVIDIA H100 80GB HBM3"}
    assert [event.number for one in found for event in one.events] == [79]
    assert found[0].topology is not None
    newest = found[-1].devices[0].ecc
    assert newest is not None
    assert newest.corrected == 9


def test_eight_gpus_take_less_than_half_a_kilobyte_each(path: Path) -> None:
    lines = DeviceLines(path)
    for at in range(WHOLE_EVERY):
        lines.append(sample(at, *(gpu(index) for index in range(8))))
    assert path.stat().st_size / WHOLE_EVERY / 8 < 500


def test_sixty_four_gpus_fit_a_line(path: Path) -> None:
    table = [["NODE"] * 64] * 64
    kinds = ("replay", "recovery", "crc_flit", "crc_data", "ecc")
    links = [
        {"link": link, "up": True, "remote": "switch", "errors": [[kind, 0] for kind in kinds]}
        for link in range(18)
    ]
    whole = sample(
        1.0,
        *(gpu(index, nvlinks=links) for index in range(64)),
        topology={"levels": table, "peer": table},
    )
    DeviceLines(path).append(whole)
    assert path.stat().st_size < 160_000
    assert len(read(path)[0].devices[63].nvlinks[17].errors) == 5


def test_links_that_count_differently_are_written_as_they_are(path: Path) -> None:
    links = [
        {"link": 0, "up": True, "remote": None, "errors": [["replay", 0]]},
        {"link": 1, "up": False, "remote": None, "errors": []},
    ]
    one = sample(1.0, gpu(0, nvlinks=links))
    DeviceLines(path).append(one)
    assert read(path) == [device_sample(one)]


def test_a_disk_that_was_full_does_not_leave_lines_that_refer_to_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = DeviceLines(path)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("mgpu_doctor.recording.write._write_all_or_nothing", full)
        with pytest.raises(OSError, match="No space left"):
            lines.append(sample(1, gpu(0)))
    lines.append(sample(2, gpu(0)))
    assert read(path)[0].devices[0].name == "NVIDIA H100 80GB HBM3"
