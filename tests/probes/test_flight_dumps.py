"""Dumps of torch's flight recorder: every form of them, and files that are none."""

from __future__ import annotations

import gzip
import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mgpu_probes.outside.flight.flight_dumps import SYMBOLISING, parse_dump, rank_by_name, read_dump
from mgpu_probes.outside.flight.flight_format import normalize_dump
from mgpu_probes.outside.torch_pickles import NotAFlightError
from mgpu_probes.outside.untrusted_files import Budget

from mgpu_doctor.case.flight_records import Progress, flight_of, read_flights
from mgpu_doctor.case.user_code import is_user_code
from tests.support.flight_records import RECORDED

FRAMES = [
    {"name": "all_reduce", "filename": "/v/site-packages/torch/d.py", "line": 3245},
    {"name": "step", "filename": "/home/me/train.py", "line": 41},
    {"name": "<module>", "filename": "/home/me/train.py", "line": 90},
]


def nccl_entry(sequence: int, **told: Any) -> dict[str, Any]:
    """As torch 2.4 to 2.13 write it (torch/csrc/distributed/c10d/FlightRecorderDetail.hpp)."""
    return {
        "frames": FRAMES,
        "record_id": sequence,
        "pg_id": 0,
        "process_group": ("0", "default_pg"),
        "collective_seq_id": sequence,
        "p2p_seq_id": 0,
        "op_id": sequence,
        "profiling_name": "nccl:all_reduce",
        "time_created_ns": 1_790_000_000_000_000_000 + sequence,
        "input_sizes": [[3, 4]],
        "input_dtypes": ["BFloat16"],
        "output_sizes": [[3, 4]],
        "output_dtypes": ["BFloat16"],
        "state": "completed",
        "time_discovered_started_ns": 1_790_000_000_100_000_000,
        "time_discovered_completed_ns": 1_790_000_000_200_000_000,
        "retired": True,
        "timeout_ms": 600_000,
        "is_p2p": False,
        **told,
    }


def nccl_dump(*entries: dict[str, Any], **told: Any) -> dict[str, Any]:
    return {
        "version": "2.5",
        "entries": list(entries),
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"}},
        "pg_status": {
            "0": {
                "last_enqueued_collective": 9,
                "last_started_collective": 8,
                "last_completed_collective": 8,
            }
        },
        "nccl_comm_state": {},
        **told,
    }


@pytest.mark.parametrize("protocol", [2, 4])
def test_an_nccl_dump(protocol: int, tmp_path: Path) -> None:
    path = tmp_path / "nccl_trace_rank_3"
    waiting = nccl_entry(9, state="started", retired=False)
    path.write_bytes(pickle.dumps(nccl_dump(nccl_entry(8), waiting), protocol))
    os.utime(path, (1_790_000_123, 1_790_000_123))
    (flight,) = read_flights(path)
    assert (flight.rank, flight.version, flight.at) == (3, "2.5", 1_790_000_123.0)
    assert flight.slack == SYMBOLISING
    assert flight.groups == {"0": (0, 1, 2, 3)}
    assert flight.progress == {"0": Progress(9, 8, 8)}
    first, second = flight.collectives
    assert first.operation == "all_reduce"
    assert first.backend == "nccl"
    assert first.inputs == ((3, 4),)
    assert first.dtypes == ("BFloat16", "BFloat16")
    assert first.site == ("/home/me/train.py", 41, "step")
    assert len(first.frames) == 3
    assert first.timeout == 600.0
    assert (second.sequence, second.state, second.retired) == (9, "started", False)
    assert flight.lost == 8


def test_the_json_form_tells_the_same_but_the_stack(tmp_path: Path) -> None:
    entry = nccl_entry(1, process_group=["0", "default_pg"])
    del entry["frames"]
    status = {"0": {"last_enqueued_collective": "9", "last_started_collective": "-1"}}
    dump = nccl_dump(entry, pg_status=status)
    path = tmp_path / "rank2.json.gz"
    path.write_bytes(gzip.compress(json.dumps(dump).encode()))
    (flight,) = read_flights(path)
    assert flight.rank == 2
    assert flight.progress == {"0": Progress(9, None, None)}
    assert flight.slack == 0.0
    (one,) = flight.collectives
    assert (one.operation, one.sequence, one.site, one.frames) == ("all_reduce", 1, None, ())


def test_an_old_dump_of_few_keys(tmp_path: Path) -> None:
    path = tmp_path / "trace_0"
    old = [{"seq_id": 4, "pg_id": 0, "profiling_name": "nccl:broadcast", "input_sizes": [[2]]}]
    path.write_bytes(pickle.dumps(old, 2))
    (flight,) = read_flights(path)
    (one,) = flight.collectives
    assert (one.group, one.sequence, one.operation, one.created) == ("0", 4, "broadcast", None)


def test_a_send_is_reported_with_its_direction_and_has_no_sequence() -> None:
    entry = nccl_entry(3, profiling_name="nccl:send 0->1", is_p2p=True, p2p_seq_id=2)
    (one,) = flight_of(normalize_dump(nccl_dump(entry), source="x", budget=Budget())).collectives
    assert (one.operation, one.p2p, one.sequence) == ("send 0->1", True, None)


def test_real_dumps_of_gloo() -> None:
    flights = read_flights(RECORDED / "skip")
    assert [flight.rank for flight in flights] == [0, 1, 2, 3]
    assert [len(flight.collectives) for flight in flights] == [25, 25, 26, 25]
    assert all(flight.version == "2.10" for flight in flights)
    assert flights[3].groups == {"0": (0, 1, 2, 3)}
    last = flights[0].collectives[-1]
    assert (last.backend, last.state, last.retired) == ("gloo", "scheduled", False)
    assert last.site is not None
    assert last.site[0].endswith("mismatches.py")


def test_real_dumps_as_json() -> None:
    flights = read_flights(RECORDED / "healthy-json")
    assert [flight.rank for flight in flights] == [0, 1, 2, 3]
    assert {collective.group for collective in flights[1].collectives} == {"0", "1", "2"}


def test_the_own_form_comes_back_as_it_was(tmp_path: Path) -> None:
    form = read_dump(RECORDED / "skip" / "trace_1") | {"host": "node-a", "pid": 77, "at": 5.0}
    path = tmp_path / "4711.json"
    path.write_text(json.dumps(form))
    (flight,) = read_flights(path)
    assert (flight.rank, flight.host, flight.pid, flight.at) == (1, "node-a", 77, 5.0)
    (again,) = read_flights(RECORDED / "skip" / "trace_1")
    assert flight.collectives == again.collectives


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("nccl_trace_rank_3", 3),
        ("trace_12", 12),
        ("prefix7", 7),
        ("rank3.json", 3),
        ("rank-3.json.gz", 3),
        ("RANK_3_of_8.pkl", 3),
        ("0.json", 0),
        ("job1234_rank5_2026", 5),
        ("dump", None),
        ("trace_99999999", None),
        ("trace.json", None),
    ],
)
def test_the_rank_is_in_the_name(name: str, rank: int | None) -> None:
    assert rank_by_name(name) == rank


def test_a_folder_with_other_things_in_it(tmp_path: Path) -> None:
    for rank in (1, 0):
        (tmp_path / f"t_{rank}").write_bytes(pickle.dumps(nccl_dump(nccl_entry(rank)), 2))
    (tmp_path / "README").write_text("dumps of tuesday")
    (tmp_path / "empty_2").write_bytes(b"")
    (tmp_path / "node-b").mkdir()
    (tmp_path / "node-b" / "t_2").write_bytes(pickle.dumps(nccl_dump(nccl_entry(2)), 2))
    (tmp_path / "t_3").symlink_to("t_0")
    assert [flight.rank for flight in read_flights(tmp_path)] == [0, 1, 2]


def test_a_link_that_the_user_names_is_followed(tmp_path: Path) -> None:
    (tmp_path / "t_1").write_bytes(pickle.dumps(nccl_dump(nccl_entry(1)), 2))
    (tmp_path / "latest").symlink_to("t_1")
    assert read_flights(tmp_path / "latest")[0].rank == 1


NONE_OF_THEM = {
    "empty": b"",
    "text": b"hello\n",
    "other pickle": pickle.dumps({"a": 1}),
    "a number": pickle.dumps(4),
    "other JSON": b'{"a": 1}',
    "cut JSON": b'{"entries": [',
    "deep JSON": b"[" * 100_000,
    "huge number": b'{"entries": ' + b"9" * 10_000 + b"}",
    "cut gzip": gzip.compress(b'{"entries": []}')[:-6],
    "false gzip": b"\x1f\x8bnothing",
    "form without its list": b'{"form": "mgpu-doctor/flight/1", "collectives": 3}',
}


@pytest.mark.parametrize("name", NONE_OF_THEM)
def test_what_is_no_dump_is_refused_in_a_sentence(name: str, tmp_path: Path) -> None:
    path = tmp_path / "trace_0"
    path.write_bytes(NONE_OF_THEM[name])
    with pytest.raises(NotAFlightError, match="trace_0 is not a flight-recorder dump") as raised:
        read_flights(path)
    assert "\n" not in str(raised.value)
    with pytest.raises(NotAFlightError):
        read_flights(tmp_path)


def test_what_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotAFlightError, match="cannot be read"):
        read_flights(tmp_path / "absent")
    with pytest.raises(NotAFlightError, match="holds no files"):
        read_flights(tmp_path)
    os.mkfifo(tmp_path / "pipe_0")
    with pytest.raises(NotAFlightError, match="no regular file"):
        read_flights(tmp_path / "pipe_0")


def test_a_small_gzip_cannot_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mgpu_probes.outside.flight.flight_dumps.MOST_BYTES", 1 << 16)
    with pytest.raises(NotAFlightError, match="far too long"):
        parse_dump(gzip.compress(b"{" + b" " * (1 << 20)), source="x")


wild: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                [*nccl_entry(1), *nccl_dump(), "ranks", "filename", "line", "name", "0"]
            ),
            inner,
            max_size=6,
        )
    ),
    max_leaves=25,
)


@given(wild, wild, wild)
def test_whatever_stands_in_a_dump_it_is_read_or_refused(
    entry: Any, config: Any, status: Any
) -> None:
    dump = {"entries": [entry, nccl_entry(1)], "pg_config": config, "pg_status": status}
    flight = flight_of(normalize_dump(dump, source="x", budget=Budget()))
    assert flight.collectives[-1].operation == "all_reduce"


@given(wild)
def test_whatever_stands_in_the_own_form(held: Any) -> None:
    form = {"form": "mgpu-doctor/flight/1", "collectives": [held], "places": held, "groups": held}
    flight_of({**form, "progress": held, "rank": held, "at": held})


def test_escapes_and_markup_do_not_come_through_a_dump() -> None:
    entry = nccl_entry(1, profiling_name="nccl:\x1b[2Jall_reduce\x07")
    (one,) = flight_of(
        normalize_dump(nccl_dump(entry), source="\x1b]0;x\x07name", budget=Budget())
    ).collectives
    assert one.operation == "all_reduce"


@pytest.mark.parametrize(
    ("file", "own"),
    [
        ("/home/me/train.py", True),
        ("train.py", True),
        ("/v/lib/python3.11/site-packages/torch/x.py", False),
        ("/usr/lib/python3/dist-packages/x.py", False),
        ("/usr/lib/python3.11/threading.py", False),
        ("<frozen runpy>", False),
        ("??", False),
        ("", False),
    ],
)
def test_own_code_is_distinguished_from_packages(file: str, own: bool) -> None:
    assert is_user_code(file) is own


def test_a_place_that_cannot_be_read_keeps_its_index() -> None:
    entry = {"group": "0", "operation": "all_reduce", "stack": [1, 9, "x"]}
    places = ["nonsense", ["train.py", 87, "main"]]
    (read,) = flight_of({"collectives": [entry], "places": places}).collectives
    assert read.frames == (("train.py", 87, "main"),)
