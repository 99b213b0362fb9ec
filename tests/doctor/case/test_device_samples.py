"""devices.jsonl as typed facts: current, older and hostile ones."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mgpu_doctor.case.device_samples import (
    Device,
    DeviceProcess,
    DeviceReader,
    DeviceSample,
    Ecc,
    Pcie,
    device_sample,
)
from tests.support.seeds import at_most

OLD = {
    "at": 5.0,
    "trouble": None,
    "devices": [
        {
            "index": 0,
            "name": "NVIDIA A100",
            "uuid": "GPU-1",
            "utilization": 0.5,
            "memory_used": 1,
            "memory_total": 2,
            "power_watts": 300.0,
            "power_limit_watts": 400.0,
            "temperature": 60.0,
            "sm_clock_mhz": 1000.0,
            "max_sm_clock_mhz": 1400.0,
            "clock_reasons": ["power_cap"],
            "pids": [7, 9],
            "trouble": None,
        }
    ],
}
NEW: dict[str, Any] = {
    "index": 3,
    "name": "NVIDIA H100",
    "memory_total": 80,
    "memory_used": 70,
    "pcie": {"generation": 5, "width": 16, "replays": 0, "sent": 10.0, "received": 20.0},
    "nvlinks": [{"link": 2, "up": True, "remote": "switch", "errors": [["replay", 4]]}],
    "ecc": {"corrected": 1, "pending": True},
    "mig": True,
    "instances": [{"uuid": "MIG-1", "gpu_instance": 1, "memory_used": 5, "pids": [8]}],
    "processes": [{"pid": 8, "memory": 5, "kind": "mps"}, {"pid": 9}],
    "numa_node": 1,
    "cores": "0-3",
    "fan": 0.4,
    "memory_busy": 0.3,
}


def read(*lines: dict[str, Any]) -> list[DeviceSample]:
    reader = DeviceReader()
    return [sample for line in lines if (sample := reader.read(line)) is not None]


def only(**fields: Any) -> Device:
    sample = device_sample({"at": 1.0, "devices": [{"index": 0, **fields}]})
    assert sample is not None
    return sample.devices[0]


def test_lines_of_older_versions() -> None:
    sample = device_sample(OLD)
    assert sample is not None
    (device,) = sample.devices
    assert (device.name, device.utilization, device.pids) == ("NVIDIA A100", 0.5, (7, 9))
    assert (device.memory_used, device.memory_total) == (1, 2)
    assert device.clock_reasons == ("power_cap",)
    assert (device.pcie, device.ecc, device.mig, device.processes) == (None, None, None, ())
    assert (sample.took, sample.topology, sample.events) == (None, None, ())


def test_all_parts_of_a_device() -> None:
    (sample,) = read({"at": 1.0, "devices": [NEW], "driver": "570.1", "took": 0.01})
    (device,) = sample.devices
    assert device.pcie == Pcie(generation=5, width=16, replays=0, sent=10.0, received=20.0)
    assert device.nvlinks[0].errors == (("replay", 4),)
    assert (device.nvlinks[0].up, device.nvlinks[0].remote) == (True, "switch")
    assert device.ecc == Ecc(corrected=1, pending=True)
    assert device.instances[0].pids == (8,)
    assert device.processes == (DeviceProcess(8, 5, "mps"), DeviceProcess(9))
    assert device.pids == (8, 9)
    assert (device.numa_node, device.cores, device.fan) == (1, "0-3", 0.4)
    assert (sample.driver, sample.took) == ("570.1", 0.01)


def test_counters_that_a_link_leaves_out_are_zero_only_where_they_are_named() -> None:
    links = [{"link": 0}, {"link": 1, "errors": [["replay", 4]]}]
    first, second = only(nvlinks=links, nvlink_errors=["replay", "ecc"]).nvlinks
    assert first.errors == (("replay", 0), ("ecc", 0))
    assert second.errors == (("replay", 4), ("ecc", 0))
    assert [nvlink.errors for nvlink in only(nvlinks=links).nvlinks] == [(), (("replay", 4),)]


def test_what_is_the_same_is_taken_from_the_line_before() -> None:
    later = {"index": 3, "same": True, "memory_used": 71, "pcie": {"sent": 11.0}}
    first, second = read({"at": 1.0, "devices": [NEW]}, {"at": 2.0, "devices": [later]})
    before, device = first.devices[0], second.devices[0]
    assert (device.name, device.memory_total, device.nvlinks) == (
        before.name,
        before.memory_total,
        before.nvlinks,
    )
    assert (device.memory_used, device.memory_busy, device.processes) == (71, None, ())
    assert device.pcie == Pcie(generation=5, width=16, replays=0, sent=11.0)


def test_traffic_is_never_taken_from_before() -> None:
    lines = [{"at": 1.0, "devices": [NEW]}, {"at": 2.0, "devices": [{"index": 3, "same": True}]}]
    pcie = read(*lines)[1].devices[0].pcie
    assert pcie is not None
    assert (pcie.generation, pcie.sent, pcie.received) == (5, None, None)


def test_a_line_without_same_forgets_what_was_before() -> None:
    lines = [{"at": 1.0, "devices": [NEW]}, {"at": 2.0, "devices": [{"index": 3}]}]
    assert read(*lines)[1].devices[0] == Device(index=3)


def test_same_as_nothing_is_unknown() -> None:
    (sample,) = read({"at": 1.0, "devices": [{"index": 3, "same": True, "utilization": 1.0}]})
    assert sample.devices[0] == Device(index=3, utilization=1.0)


def test_a_repeated_event_is_one() -> None:
    first, second = {"at": 1.0, "index": 0, "number": 79}, {"at": 2.0, "number": 31}
    samples = read(
        {"at": 1.5, "events": [first]},
        {"at": 2.5, "events": [first, second]},
        {"at": 3.5, "events": [first, second]},
    )
    assert [[event.number for event in sample.events] for sample in samples] == [[79], [31], []]
    assert samples[1].events[0].index is None


def test_a_topology() -> None:
    told = {"levels": [["SELF", "NVL"], ["NVL", "SELF"]], "peer": [["OK", "?"], ["what", "OK"]]}
    (sample,) = read({"at": 1.0, "topology": told})
    assert sample.topology is not None
    assert sample.topology.levels[0] == ("SELF", "NVL")
    assert sample.topology.peer == (("OK", "?"), ("?", "OK"))


@pytest.mark.parametrize(
    "expected",
    [
        [],
        {},
        {"levels": [["SELF"]]},
        {"levels": [["SELF", "NVL"]], "peer": [["OK", "OK"]]},
        {"levels": [["SELF"]], "peer": [["OK", "OK"], ["OK", "OK"]]},
        {"levels": [["SELF"] * 300] * 300, "peer": [["OK"] * 300] * 300},
    ],
    ids=["list", "empty", "half", "not-square", "unequal", "huge"],
)
def test_no_topology(expected: Any) -> None:
    (sample,) = read({"at": 1.0, "topology": expected})
    assert sample.topology is None


@pytest.mark.parametrize(
    ("field", "value", "known"),
    [
        ("fan", 1.1, 1.1),
        ("fan", 37100, None),
        ("memory_busy", -0.1, None),
        ("numa_node", -1, None),
        ("mig", 1, None),
        ("unified_memory", "yes", False),
        ("processes", [{"pid": 1 << 40}, {"pid": "1"}, 5], ()),
        ("nvlinks", [{"link": -1}, {"up": True}, None], ()),
        ("instances", {"a": 1}, ()),
        ("ecc", [1], None),
        ("name", "a\x1b[31mred", "ared"),
    ],
)
def test_nonsense_is_unknown(field: str, value: Any, known: Any) -> None:
    assert getattr(only(**{field: value}), field) == known


def test_everything_is_bounded() -> None:
    many = 100_000
    device = only(
        nvlinks=[{"link": 0, "errors": [["a", 1]] * many}] * many,
        instances=[{"pids": [1] * many}] * 1000,
        processes=[{"pid": 1}] * many,
    )
    assert len(device.nvlinks) <= 64
    assert len(device.nvlinks[0].errors) == 1
    assert len(device.instances) <= 64
    assert len(device.processes) <= 4096
    (sample,) = read({"at": 1.0, "events": [{"at": 1.0, "number": n} for n in range(many)]})
    assert len(sample.events) <= 256


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from([*NEW, "link", "pid", "errors", "at", "number"]), inner)
    ),
    max_leaves=20,
)
LINES = st.fixed_dictionaries(
    {"at": st.just(1.0)},
    optional={
        "devices": st.lists(
            st.dictionaries(st.sampled_from([*NEW, "same", "nvlink_errors"]), VALUES) | VALUES,
            max_size=4,
        ),
        "events": VALUES,
        "topology": VALUES,
    },
)


def test_what_seldom_changes_is_as_if_read_alone() -> None:
    """Live samples repeat it: it is read once, until it is another."""
    worn = {**NEW, "nvlinks": [{**NEW["nvlinks"][0], "errors": [["replay", 5]]}]}
    busy = {**NEW, "pcie": {**NEW["pcie"], "sent": 99.0}, "fan": 0.9}
    lines = [{"at": float(at), "devices": [one]} for at, one in enumerate((NEW, NEW, busy, worn))]
    assert read(*lines) == [device_sample(line) for line in lines]


def test_of_an_endless_stream_of_events_the_newest_are_still_heard() -> None:
    lines = [
        {
            "at": float(line),
            "events": [{"at": line + number / 256, "number": 13} for number in range(256)],
        }
        for line in range(20)
    ]
    assert [len(sample.events) for sample in read(*lines, lines[-1])] == [256] * 20 + [0]


@settings(max_examples=at_most(50))
@given(st.lists(LINES, max_size=3))
def test_no_line_breaks_the_reader(lines: list[dict[str, Any]]) -> None:
    for sample in read(*lines):
        for device in sample.devices:
            assert device.index >= 0
            hash(device)


def test_numbers_that_json_cannot_hold() -> None:
    line = json.loads('{"at": 1, "devices": [{"index": 0, "utilization": NaN, "fan": Infinity}]}')
    assert read(line)[0].devices[0] == Device(index=0)
