"""Samples of many hosts are those that a few hosts' would be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mgpu_doctor.case import load, sample_lines, samples
from mgpu_doctor.recording.layout import HOST_SAMPLES, HOSTS, INFO, SCHEMA

NUMBERS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 5),
    st.sampled_from([2**63 - 1, 2**63, 10**400]),
    st.floats(allow_nan=True, allow_infinity=True),
    st.just("3"),
)
PIDS = st.sampled_from(["7", "07", "-7", "0", "x", "9" * 11, "9" * 12, " 7", "\u00b2"])
TASKS = st.dictionaries(
    st.sampled_from(["parent", "threads", "age", "ran", "queued", "all_queued", "faults", "new"]),
    NUMBERS,
    max_size=4,
)
TEXTS = st.fixed_dictionaries(
    {},
    optional={
        "state": st.sampled_from(["R", "D", "DRS", "", 3]),
        "cores": st.sampled_from(["0-1,4", "", "b", "0," * 400, 3]),
        "limits": st.sampled_from([[], ["/a", "\x1b[1m", ""], ["/a"] * 20, [3], "x"]),
    },
)
LINES = st.fixed_dictionaries(
    {"at": st.one_of(st.just(5.0), NUMBERS)},
    optional={
        "host": st.sampled_from(["node", "", "a\x1b[1mb", "n" * 99, 3]),
        "cpu_percent": NUMBERS,
        "memory_used": NUMBERS,
        "busy": NUMBERS,
        "processes": st.one_of(
            st.dictionaries(PIDS, st.lists(NUMBERS, max_size=3), max_size=2), NUMBERS
        ),
        "tasks": st.one_of(
            st.dictionaries(PIDS, st.builds(lambda a, b: {**a, **b}, TASKS, TEXTS), max_size=2),
            NUMBERS,
        ),
        "groups": st.dictionaries(
            st.sampled_from(["/a", "", "\x07"]), st.fixed_dictionaries({"quota": NUMBERS})
        ),
        "pressure": st.dictionaries(st.sampled_from(["cpu", "io", "fans"]), NUMBERS),
    },
)


@given(LINES)
def test_what_is_read_at_once_is_what_reading_with_care_gives(line: dict[str, Any]) -> None:
    raw = json.dumps(line)
    quick = sample_lines.host_sample(raw.encode())
    assert quick is None or repr(quick) == repr(samples.host_sample(json.loads(raw)))


def test_a_line_of_the_probe_is_read_at_once() -> None:
    task = {"parent": 1, "state": "D", "threads": 4, "ran": 2.5, "cores": "0-1", "limits": ["/a"]}
    line = {
        "at": 5,
        "host": "node",
        "processes": {"7": [1.5, 4096]},
        "tasks": {"7": task},
        "groups": {"/a": {"quota": 2.0, "throttled": 1.5}},
        "pressure": {"cpu": 1.0, "io": None},
        "load1": 0.5,
    }
    quick = sample_lines.host_sample(json.dumps(line).encode())
    assert quick == samples.host_sample(line)
    assert quick is not None


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[1]",
        b"{",
        b'{"at": NaN}',
        b'{"at": 1, "host": "\xff"}',
        b"[" * 100_000,
        b'{"busy":1}',
    ],
    ids=range(7),
)
def test_what_is_unusual_is_left_to_care(raw: bytes) -> None:
    assert sample_lines.host_sample(raw) is None


def test_more_processes_than_are_taken_are_left_to_care() -> None:
    many = {str(pid): [1.0, 1] for pid in range(samples.MOST_PROCESSES + 1)}
    assert sample_lines.host_sample(json.dumps({"at": 1.0, "processes": many}).encode()) is None


def test_many_hosts_are_told_of_like_a_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / INFO).write_text(json.dumps({"schema": SCHEMA, "probe": False}))
    lines = [
        '{"at": 2.0, "host": "%s", "busy": 3}',
        '{"busy": "x"}',
        "nonsense",
        '{"at": 1, "busy"',
    ]
    for number in range(3):
        host = tmp_path / HOSTS / f"node{number}"
        host.mkdir(parents=True)
        (host / HOST_SAMPLES).write_text("\n".join(lines) % host.name)
    few = load.load_recording(tmp_path)
    monkeypatch.setattr(load, "MANY_HOSTS", 3)
    many = load.load_recording(tmp_path)
    assert many.host_samples == few.host_samples
    assert [one.host for one in many.host_samples] == ["node0", "node1", "node2"]
    assert many.unexamined == few.unexamined
    assert "6 of its lines cannot be read" in {one.reason for one in many.unexamined}
