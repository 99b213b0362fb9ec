"""What the words on the command line name; one clear sentence if they name nothing."""

from __future__ import annotations

import gzip
import json
import os
import pickle
from pathlib import Path

import pytest

from mgpu_doctor.examine.subjects import (
    Flights,
    Log,
    Pid,
    Recording,
    Subject,
    UnknownSubject,
    recognize,
)
from tests.support.boxes import finished
from tests.support.recordings import HEALTHY, recording

FLIGHT = {"version": "2.10", "pg_config": {}, "pg_status": {}, "entries": []}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MGPU_DOCTOR_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def recognize_path(path: Path) -> Subject:
    return recognize(str(path))


def test_a_number_is_a_process() -> None:
    assert recognize("4711") == Pid(4711)


def test_a_number_that_is_a_file_is_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("4711").write_text("step 1\n")
    assert recognize("4711") == Log("4711")


def test_recordings(tmp_path: Path, home: Path) -> None:
    folder = recording(tmp_path / "one", [HEALTHY] * 2)
    assert recognize_path(folder) == Recording(folder)
    boxes = tmp_path / "boxes-alone"
    boxes.mkdir()
    finished(boxes)
    assert recognize_path(boxes) == Recording(boxes)
    kept = recording(home / "runs" / "some-id", [HEALTHY] * 2)
    assert recognize("some-id") == recognize("latest") == Recording(kept)


@pytest.mark.parametrize("kind", ["json", "pickle", "gzip"])
def test_dumps_of_the_flight_recorder(tmp_path: Path, kind: str) -> None:
    raw = pickle.dumps(FLIGHT) if kind == "pickle" else json.dumps(FLIGHT).encode()
    (tmp_path / "dumps").mkdir()
    path = tmp_path / "dumps" / "trace_3"
    path.write_bytes(gzip.compress(raw) if kind == "gzip" else raw)
    assert recognize_path(path) == Flights(path)
    assert recognize_path(path.parent) == Flights(path.parent)


def test_console_text(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "train.log"
    log.parent.mkdir()
    log.write_text("step 1\n")
    assert recognize_path(log) == Log(str(log))
    assert recognize_path(log.parent) == Log(str(log.parent))
    packed = tmp_path / "train.log.gz"
    packed.write_bytes(gzip.compress(b"step 1\n"))
    assert recognize_path(packed) == Log(str(packed))
    assert recognize("-") == Log("-")


@pytest.mark.parametrize(
    ("made", "says"),
    [
        ("gone", "does not exist"),
        ("empty", "is an empty folder"),
        ("box", "is the black box of one rank"),
        ("torn", "cannot be read"),
        ("list", "is a pickle, but neither"),
        ("cut", "may be truncated"),
    ],
)
def test_what_cannot_be_examined(tmp_path: Path, made: str, says: str) -> None:
    path = tmp_path / made
    if made == "empty":
        path.mkdir()
    elif made == "box":
        os.rename(finished(tmp_path), path)
    elif made == "torn":
        path.write_bytes(gzip.compress(b"step 1\n" * 100)[:20])
    elif made == "list":
        path.write_bytes(pickle.dumps([1, 2]))
    elif made == "cut":
        path.write_bytes(pickle.dumps(FLIGHT)[:6])
    with pytest.raises(UnknownSubject, match=says):
        recognize_path(path)


def test_latest_where_there_is_none() -> None:
    with pytest.raises(UnknownSubject, match="there are no recordings"):
        recognize("latest")


def test_a_pipe_is_not_read_to_tell_what_it_is(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert recognize_path(tmp_path / "pipe") == Log(str(tmp_path / "pipe"))


def test_a_folder_of_recordings_asks_for_one(tmp_path: Path) -> None:
    only = recording(tmp_path / "all" / "20260101-000000-a", [HEALTHY] * 2)
    assert recognize_path(tmp_path / "all") == Recording(only)
    (tmp_path / "all" / "job.log").write_text("step 1\n")
    with pytest.raises(UnknownSubject, match="holds the recording 20260101-000000-a and other"):
        recognize_path(tmp_path / "all")
    newest = recording(tmp_path / "all" / "20260102-000000-b", [HEALTHY] * 2)
    with pytest.raises(UnknownSubject, match=f"holds 2 recordings: name one, such as {newest},"):
        recognize_path(tmp_path / "all")
