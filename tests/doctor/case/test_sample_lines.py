"""The fast reader of sample lines gives the same result as the careful one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mgpu_doctor.case.host_samples import decode_host_sample, read_host_sample
from mgpu_doctor.case.recording_case import load_recording
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
    assert repr(decode_host_sample(raw.encode())) == repr(read_host_sample(json.loads(raw)))


@pytest.mark.parametrize("name", ["\x1b[1mred", "a\x7fb", "caf\u00e9", "n" * 9999, ""])
def test_texts_are_made_harmless(name: str) -> None:
    line = {"at": 1.0, "host": name}
    for raw in (json.dumps(line), json.dumps(line, ensure_ascii=False)):
        assert decode_host_sample(raw.encode()) == read_host_sample(line)


@pytest.mark.parametrize("raw", [b"", b"[1]", b"{", b'{"at": NaN}', b"[" * 100_000, b'{"busy":1}'])
def test_what_is_no_sample(raw: bytes) -> None:
    assert decode_host_sample(raw) is None


def test_processes_are_bounded() -> None:
    many = {str(pid): [1.0, 1] for pid in range(5000)}
    sample = decode_host_sample(json.dumps({"at": 1.0, "processes": many}).encode())
    assert sample is not None
    assert len(sample.processes) == 4096


def test_broken_lines_are_counted_and_one_being_written_is_not(tmp_path: Path) -> None:
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
    case = load_recording(tmp_path)
    assert [sample.host for sample in case.host_samples] == ["node0", "node1", "node2"]
    assert "6 of its lines cannot be read" in {gap.reason for gap in case.unexamined}
