"""XIDs in a pretend kernel's log: records of the device, files of the system logger, hostile ones,
and those that the driver's events tell as well."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
from mgpu_probes.outside.devices import Devices
from mgpu_probes.outside.devices.xid_events import MOST_LOGGED, LoggedXids, XidLogThread, XidMerger

FELL = "NVRM: Xid (PCI:0000:3b:00): 79, pid=4711, name=python, GPU has fallen off the bus."
IN_MIG = "NVRM: Xid (PCI:0000:1b:00 GPU-I:03): 31, pid=1, name=python, Ch 00000008, MMU Fault"
DEVICES: list[dict[str, Any]] = [
    {"index": 0, "bus_id": "0000:1b:00.0"},
    {"index": 1, "bus_id": "0000:3B:00.0"},
    {"index": 2},
]


def record(text: str, since_boot: float | None = None) -> str:
    moment = time.monotonic() if since_boot is None else since_boot
    return f"4,1207,{moment * 1e6:.0f},-;{text}\n SUBSYSTEM=pci\n DEVICE=+pci:0000:3b:00.0\n"


def write(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


@pytest.fixture
def kmsg(tmp_path: Path) -> Path:
    path = tmp_path / "kmsg"
    path.write_text(record(FELL.replace("79", "13")))
    return path


def poll_xids(log: LoggedXids) -> list[tuple[int, str]]:
    log.poll()
    return [(one["number"], one["bus_id"]) for one in log.take()]


def test_what_comes_is_read_and_what_was_there_before_is_not(kmsg: Path) -> None:
    log = LoggedXids(kmsg, ())
    assert (log.trouble, poll_xids(log)) == (None, [])
    write(kmsg, record("usb 1-1: new device") + record(FELL) + record(IN_MIG))
    assert poll_xids(log) == [(79, "0000:3b:00"), (31, "0000:1b:00")]
    assert poll_xids(log) == []


def test_when_it_was_lies_between_two_looks(kmsg: Path) -> None:
    """The kernel's clock may have drifted: a stamp of before boot, and one of days to come."""
    log = LoggedXids(kmsg, ())
    before = time.time()
    write(kmsg, record(FELL, 0) + record(FELL, time.monotonic() + 1e6))
    log.poll()
    first, last = log.take()
    assert abs(first["at"] - before) < 60
    assert first["at"] <= last["at"] <= time.time()


@pytest.mark.parametrize(
    "text",
    [
        "somebody wrote NVRM: Xid (PCI:0000:3b:00): 79, pid=1",
        "NVRM: Xid (PCI:../../etc): 79, x",
        "NVRM: Xid (PCI:0000:3b:00): 123456789, x",
        "NVRM: Xid (PCI:0000:3b:00): ",
        f"NVRM: Xid (PCI:0000:3b:00{'A' * 5000}): 79, x",
    ],
)
def test_what_only_looks_like_one_is_none(kmsg: Path, text: str) -> None:
    log = LoggedXids(kmsg, ())
    write(kmsg, record(text))
    assert poll_xids(log) == []


def test_a_flood_is_bounded(kmsg: Path) -> None:
    log = LoggedXids(kmsg, ())
    write(kmsg, record(FELL) * (3 * MOST_LOGGED))
    assert len(poll_xids(log)) == MOST_LOGGED


def test_a_log_that_may_not_be_read(tmp_path: Path) -> None:
    log = LoggedXids(tmp_path / "kmsg", (tmp_path / "kern.log",))
    assert poll_xids(log) == []
    assert log.trouble is not None
    assert "kmsg cannot be read" in log.trouble


def test_else_a_file_of_the_system_logger_is_followed_through_its_rotation(tmp_path: Path) -> None:
    file = tmp_path / "kern.log"
    file.write_text(f"Nov 22 15:00:00 node-a kernel: [  9.5] {FELL}\n")
    log = LoggedXids(tmp_path / "kmsg", (tmp_path / "missing", file))
    assert (log.trouble, poll_xids(log)) == (None, [])
    write(file, f"2026-11-22T15:47:00+00:00 node-a kernel: {FELL}\nNov 22 15:47:01 node-a ker")
    assert poll_xids(log) == [(79, "0000:3b:00")]
    write(file, f"nel: [ 12.345678] {IN_MIG}\nNov 22 15:47:02 node-a app: {FELL}\n")
    assert poll_xids(log) == [(31, "0000:1b:00")]
    file.rename(tmp_path / "kern.log.1")
    file.write_text(f"Nov 22 15:48:00 node-a kernel: {FELL}\n")
    assert poll_xids(log) == [(79, "0000:3b:00")]
    os.truncate(file, 0)
    write(file, f"a kernel: {IN_MIG}\n")
    assert poll_xids(log) == [(31, "0000:1b:00")]
    log.close()


def test_it_is_looked_at_from_a_thread_of_its_own(kmsg: Path) -> None:
    logged = XidLogThread(kmsg)
    assert logged.take(patience=60) == []
    write(kmsg, record(FELL))
    assert [one["number"] for one in logged.take(patience=60)] == [79]
    logged.close(60)


def merged_xids(*events: dict[str, Any], heard: bool, by: XidMerger) -> list[tuple[Any, ...]]:
    new = by.new(events if heard else (), () if heard else events, DEVICES)
    return [(one["index"], one["number"], one.get("logged", False)) for one in new]


def test_an_xid_is_reported_once_by_whoever_is_first() -> None:
    by = XidMerger()
    logged = {"at": 100.0, "number": 79, "bus_id": "0000:3b:00"}
    heard = {"at": 101.0, "number": 79, "index": 1}
    assert merged_xids(logged, heard=False, by=by) == [(1, 79, True)]
    assert merged_xids(heard, {**heard, "index": None}, heard=True, by=by) == []
    assert merged_xids({**heard, "index": 0}, heard=True, by=by) == [(0, 79, False)]
    assert merged_xids({**heard, "number": 48}, heard=True, by=by) == [(1, 48, False)]
    assert merged_xids({**logged, "number": 48, "at": 102.0}, heard=False, by=by) == []
    assert merged_xids({**logged, "at": 200.0}, heard=False, by=by) == [(1, 79, True)]


def test_one_source_may_tell_the_same_twice() -> None:
    logged = {"at": 100.0, "number": 31, "bus_id": "0000:3b:00"}
    assert merged_xids(logged, logged, heard=False, by=XidMerger()) == [(1, 31, True)] * 2


def test_a_device_that_is_not_listed_has_its_address_only() -> None:
    lost = {"at": 100.0, "number": 79, "bus_id": "0000:9a:00"}
    (event,) = XidMerger().new((), (lost,), DEVICES)
    assert event == {**lost, "index": None, "logged": True}


def test_samples_carry_them_with_the_index_of_the_gpu(
    kmsg: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Driver:
        """Answers as NVML's probe does, and hears nothing."""

        def __init__(self, *_: object, **__: object) -> None: ...

        def sample(self) -> dict[str, Any]:
            empty = {"trouble": None, "took": 0.0, "topology": None, "events_trouble": "no events"}
            return {**empty, "devices": DEVICES, "driver": "580.1", "events": []}

        def close(self) -> None: ...

    monkeypatch.setattr("mgpu_probes.outside.devices.NvidiaGpus", Driver)
    devices = Devices(stays=True, kernel_log=kmsg)
    assert devices._logged.take(patience=60) == [], "it reads from now on"
    write(kmsg, record(FELL))
    events: list[dict[str, Any]] = []
    while not events:
        events = devices.sample()["events"]
    devices.close()
    assert [(event["index"], event["number"], event["logged"]) for event in events] == [
        (1, 79, True)
    ]
