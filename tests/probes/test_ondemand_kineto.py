"""What we say as the daemon that Kineto looks for: the one configuration to each rank, and to
nobody else. What a process of torch 2.13 sent is kept here as it came."""

from __future__ import annotations

import os
import socket
import struct
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mgpu_probes.outside.jobs.found import RANK, FoundProcess
from mgpu_probes.outside.ondemand import kineto
from mgpu_probes.outside.ondemand.kineto import Daemon, OccupiedError

from tests.support.jobs import until

HEAD = struct.Struct("=Q32s")
ASKED = HEAD.pack(24, b"req") + bytes.fromhex("030000000200000000000000000000002d15000007150000")
BUSY = HEAD.pack(24, b"req") + bytes.fromhex("010000000200000000000000000000002d15000007150000")
HELLO = HEAD.pack(16, b"ctxt") + struct.pack("=iiq", 0, 5421, 0)


def content(answer: bytes | None) -> bytes:
    assert answer is not None
    size, _ = HEAD.unpack_from(answer)
    assert len(answer) == HEAD.size + size
    return answer[HEAD.size :]


def test_a_rank_is_told_once() -> None:
    daemon = Daemon(frozenset({5421}), b"config")
    assert content(daemon.answer(BUSY, 5421)) == b""  # it traces for somebody else
    assert content(daemon.answer(ASKED, 5421)) == b"config"
    assert content(daemon.answer(ASKED, 5421)) == b""
    assert daemon.given == {5421}


def test_the_kernel_says_who_asks_not_the_message() -> None:
    daemon = Daemon(frozenset({5421}), b"config")
    assert content(daemon.answer(ASKED, 4711)) == b""
    assert not daemon.given


def test_who_says_hello_is_counted() -> None:
    answer = Daemon(frozenset(), b"").answer(HELLO, 5421)
    assert content(answer) == struct.pack("=i", 1)


@given(st.binary(max_size=120))
def test_nonsense_gives_nothing_away(nonsense: bytes) -> None:
    answer = Daemon(frozenset({1}), b"config").answer(nonsense, 2)
    assert answer is None or b"config" not in answer


def rank() -> FoundProcess:
    return FoundProcess(
        os.getpid(), 1, RANK, "R", 0, 0, 1, "python", (), 0, 0.0, os.geteuid(), None, None, None
    )


def test_a_rank_that_asks_is_traced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kineto, "AHEAD", 60.0)
    traces = tmp_path / "traces"
    traces.mkdir()

    def process() -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as asking:
            asking.bind(str(tmp_path / "client"))
            until((tmp_path / "dynolog").exists)
            asking.sendto(ASKED, str(tmp_path / "dynolog"))
            lines = content(asking.recv(4096)).decode().splitlines()
        told = dict(one.partition("=")[::2] for one in lines)
        stem = told["ACTIVITIES_LOG_FILE"].removesuffix(".json")
        Path(f"{stem}_{os.getpid()}.json").write_text(told["ACTIVITIES_DURATION_MSECS"])

    thread = threading.Thread(target=process)
    thread.start()
    (taken,) = kineto.take([rank()], str(tmp_path), 2.0, traces, lambda _: None)
    thread.join()
    assert taken.path == traces / "rank0.json"
    assert taken.path.read_text() == "2000"
    assert taken.path.stat().st_mode & 0o777 == 0o600
    assert not (tmp_path / "dynolog").exists()


def test_who_never_asks_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kineto, "AHEAD", 0.0)
    (taken,) = kineto.take([rank()], str(tmp_path), 0.1, tmp_path, lambda _: None)
    assert taken.path is None
    assert "did not ask" in str(taken.why)


def test_another_daemon_is_left_alone_and_a_dead_one_s_place_is_taken(tmp_path: Path) -> None:
    place = str(tmp_path / "dynolog")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        other.bind(place)
        with (
            pytest.raises(OccupiedError, match="runs here already"),
            kineto._listening(str(tmp_path)),
        ):
            pass
    with kineto._listening(str(tmp_path)) as listening:
        assert listening.getsockname() == place
