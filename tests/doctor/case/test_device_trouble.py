"""Whose GPUs were sampled; a kernel log that cannot be read for XIDs is reported once."""

from __future__ import annotations

import json
from pathlib import Path

from mgpu_doctor.case.device_samples import Device, DeviceSample
from mgpu_doctor.case.ending_gaps import unread_log
from mgpu_doctor.case.model import Gap
from mgpu_doctor.case.recording_case import load_recording
from mgpu_doctor.recording.layout import DEVICE_SAMPLES, HOSTS
from tests.support.recordings import HEALTHY, STARTED, recording

GPU = (Device(0),)
DENIED = "/dev/kmsg cannot be read: Operation not permitted"


def sample(host: str | None = None, **changes: str) -> DeviceSample:
    return DeviceSample(float(STARTED), GPU, host=host, **changes)  # type: ignore[arg-type]


def test_samples_of_several_hosts_know_theirs(tmp_path: Path) -> None:
    made = recording(tmp_path / "job", (HEALTHY, HEALTHY))
    xid = {"at": STARTED + 1, "index": None, "number": 79, "bus_id": "0000:3b:00", "logged": True}
    for host in ("node-a", "node-b"):
        (made / HOSTS / host).mkdir()
        line = {"at": STARTED + 1, "devices": [{"index": 0}], "kernel_log_trouble": DENIED}
        told = {**line, "events": [xid] if host == "node-b" else []}
        (made / HOSTS / host / DEVICE_SAMPLES).write_text(json.dumps(told) + "\n")
    case = load_recording(made)
    assert [sample.host for sample in case.device_samples] == ["node-a", "node-b"]
    (event,) = case.device_samples[1].events
    assert (event.index, event.bus_id, event.logged) == (None, "0000:3b:00", True)
    (gap,) = (gap for gap in case.unexamined if gap.probe == "kernel log")
    assert gap.reason.startswith(DENIED)


def test_a_log_that_was_read_or_is_reported_already_is_not_mentioned() -> None:
    denied = sample(kernel_log_trouble=DENIED)
    assert unread_log([sample()], ()) == []
    assert unread_log([denied, sample()], ()) == [], "it can be read now"
    assert unread_log([denied], (Gap.KERNEL_LOG,)) == []
    assert unread_log([DeviceSample(1.0, (), kernel_log_trouble=DENIED)], ()) == []


def test_of_all_hosts_it_is_reported_once_with_what_is_known_instead() -> None:
    (heard,) = unread_log([sample(h, kernel_log_trouble=DENIED) for h in "ab"], ())
    assert heard.reason.endswith("only those the driver reports (NVML)")
    deaf = sample(kernel_log_trouble=DENIED, events_trouble="XIDs cannot be received: no support")
    assert "nor from the driver: XIDs cannot be received" in unread_log([deaf], ())[0].reason
