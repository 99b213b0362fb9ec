"""Untrusted profiler traces: what can be read within bounds is read, and the rest is reported."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pytest
from mgpu_probes.outside.traces import trace_chunks
from mgpu_probes.outside.traces.chrome_trace import read_trace
from mgpu_probes.outside.traces.trace_columns import Kind, NotATraceError

EVENT = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 5.5, "dur": 2.25}


def file(path: Path, *events: object, **head: object) -> Path:
    path.write_text(json.dumps({**head, "traceEvents": list(events)}))
    return path


def test_columns_of_what_is_wanted(tmp_path: Path) -> None:
    path = file(
        tmp_path / "t.json",
        {**EVENT, "args": {"stream": 7, "correlation": 3, "Seq": 9, "grid": [1, 2]}},
        {"ph": "X", "cat": "python_function", "name": "f", "ts": 1, "dur": 1},
        {"ph": "M", "name": "process_name", "ts": 1, "pid": 1, "args": {"name": "python"}},
        {"ph": "X", "cat": "Operator", "name": "aten::mm", "pid": "x", "tid": "y", "ts": 1},
        distributedInfo={"backend": "nccl", "rank": 3, "world_size": 8, "pg_config": [{}]},
        host_name="node",
    )
    found = read_trace(path)
    assert (found.rank, found.world_size, found.host, found.cut) == (3, 8, "node", None)
    first, second = found.events
    assert (first["kind"], first["start"], first["length"]) == (Kind.OPERATOR, 1000, 0)
    assert [int(second[one]) for one in ("start", "length", "stream", "correlation")] == [
        5500,
        2250,
        7,
        3,
    ]
    assert found.names[second["name"]] == "k"


def test_a_bare_list_and_facts_behind_the_events(tmp_path: Path) -> None:
    bare = tmp_path / "bare.json"
    bare.write_text(json.dumps([EVENT, EVENT]))
    assert len(read_trace(bare).events) == 2
    after = tmp_path / "after.json"
    after.write_text(json.dumps({"traceEvents": [EVENT], "distributedInfo": {"rank": 2}}))
    assert read_trace(after).rank == 2


def test_the_same_whatever_the_size_of_a_piece(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nested = [{**EVENT, "ts": at, "name": "},{"} for at in range(50)]
    path = file(tmp_path / "t.json", *nested)
    whole = read_trace(path)
    monkeypatch.setattr(trace_chunks, "CHUNK", 64)
    assert (read_trace(path).events == whole.events).all()
    assert len(whole.events) == 50
    assert whole.cut is None
    assert whole.damaged == 0


@pytest.mark.parametrize("lost", [3, 40, 400])
def test_broken_tails(tmp_path: Path, lost: int) -> None:
    path = file(tmp_path / "t.json", *[{**EVENT, "ts": at} for at in range(20)])
    path.write_bytes(path.read_bytes()[:-lost])
    found = read_trace(path)
    assert found.cut == "the file ends early"
    assert 10 <= len(found.events) <= 20


def test_damaged_events_are_counted_and_the_others_kept(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    good = json.dumps(EVENT).encode()
    bad = [b'{"ph": "X", "ts": }', b'{"ph": "X", "args": "none"}', b'{"ph": ' + b"[" * 9000 + b"}"]
    text = good.replace(b'"k"', b'"\xff\xfe"')
    path.write_bytes(b'{"traceEvents": [' + b",".join([good, *bad, text, good]) + b"]}")
    found = read_trace(path)
    assert len(found.events) == 3
    assert found.damaged >= 3


def test_numbers_beyond_reason_are_unknown(tmp_path: Path) -> None:
    args = {"stream": 1 << 40, "correlation": -5, "Seq": 10**30}
    path = file(tmp_path / "t.json", {**EVENT, "dur": 1e300, "args": args}, {**EVENT, "ts": 1e200})
    (only,) = read_trace(path).events
    assert (only["stream"], only["correlation"], only["sequence"]) == (-1, -1, -1)
    assert only["length"] == 10**15


def test_bounds_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = tmp_path / "t.json.gz"
    with gzip.open(bomb, "wb") as out:
        out.write(b'{"traceEvents": [' + json.dumps(EVENT).encode() + b",")
        out.write(b" " * (trace_chunks.MOST_PIECE + 3 * trace_chunks.CHUNK))
        out.write(b"{}]}")
    assert "an event of more than 16 MiB" in (read_trace(bomb).cut or "")
    monkeypatch.setattr(trace_chunks, "MOST_BYTES", 4 << 20)
    with gzip.open(bomb, "wb") as out:
        out.write(b'{"traceEvents": [' + b",".join([json.dumps(EVENT).encode()] * 60_000))
    found = read_trace(bomb)
    assert "it is larger than" in (found.cut or "")
    assert len(found.events) < 60_000


def test_what_is_no_trace_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text('{"steps": [1, 2]}')
    os.mkfifo(tmp_path / "pipe.json")
    for name in ("t.json", "pipe.json", "none.json"):
        with pytest.raises(NotATraceError):
            read_trace(tmp_path / name)
