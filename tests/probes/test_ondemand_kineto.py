"""What we say as the daemon that Kineto looks for: the one configuration to each rank, and to
nobody else. What a process of torch 2.13 sent is kept here as it came."""

from __future__ import annotations

import os
import select
import socket
import stat
import struct
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mgpu_probes.outside.jobs.running_jobs import RANK, JobProcess
from mgpu_probes.outside.traces import kineto_daemon
from mgpu_probes.outside.traces.kineto_daemon import (
    Daemon,
    OccupiedError,
    Sender,
    explain_unsafe_folder,
)

from tests.support.jobs import until
from tests.support.other_user import as_nobody

HEAD = struct.Struct("=Q32s")
ASKED = HEAD.pack(24, b"req") + bytes.fromhex("030000000200000000000000000000002d15000007150000")
BUSY = HEAD.pack(24, b"req") + bytes.fromhex("010000000200000000000000000000002d15000007150000")
HELLO = HEAD.pack(16, b"ctxt") + struct.pack("=iiq", 0, 5421, 0)


def content(answer: bytes | None) -> bytes:
    assert answer is not None
    size, _ = HEAD.unpack_from(answer)
    assert len(answer) == HEAD.size + size
    return answer[HEAD.size :]


ME, STRANGER = 1000, 1001
RANK_5421 = Sender(5421, ME)


def test_a_rank_is_reported_once() -> None:
    daemon = Daemon(frozenset({5421}), b"config", ME)
    assert content(daemon.answer(BUSY, RANK_5421)) == b""  # it traces for somebody else
    assert content(daemon.answer(ASKED, RANK_5421)) == b"config"
    assert content(daemon.answer(ASKED, RANK_5421)) == b""
    assert daemon.given == {5421}


def test_the_kernel_says_who_asks_not_the_message() -> None:
    daemon = Daemon(frozenset({5421}), b"config", ME)
    assert content(daemon.answer(ASKED, Sender(4711, ME))) == b""
    assert not daemon.given


def test_who_says_hello_is_counted() -> None:
    answer = Daemon(frozenset(), b"", ME).answer(HELLO, RANK_5421)
    assert content(answer) == struct.pack("=i", 1)


@pytest.mark.parametrize("message", [HELLO, ASKED, BUSY], ids=["hello", "asked", "busy"])
@pytest.mark.parametrize(
    ("sender", "answered"),
    [
        (Sender(5421, ME), True),
        (Sender(5421, 0), True),
        (Sender(5421, STRANGER), False),
        (Sender(0, 65_534), False),
        (None, False),
    ],
)
def test_only_this_user_and_root_get_an_answer(
    message: bytes, sender: Sender | None, answered: bool
) -> None:
    daemon = Daemon(frozenset({5421, 0}), b"config", ME)
    assert (daemon.answer(message, sender) is not None) is answered
    if not answered:
        assert not daemon.given


@given(st.binary(max_size=120))
def test_nonsense_gives_nothing_away(nonsense: bytes) -> None:
    answer = Daemon(frozenset({1}), b"config", ME).answer(nonsense, Sender(2, ME))
    assert answer is None or b"config" not in answer


@contextmanager
def listening_and_asking(
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[tuple[socket.socket, socket.socket]]:
    """A daemon's socket in the abstract namespace, and one of a client with a name."""
    monkeypatch.setattr(kineto_daemon, "NAME", f"dynolog-of-test-{os.getpid()}")
    with (
        kineto_daemon._listening(None) as listening,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as asking,
    ):
        asking.bind("")
        asking.connect(listening.getsockname())
        yield listening, asking


def answer_to(asking: socket.socket) -> bytes | None:
    """What has come by now."""
    readable, _, _ = select.select([asking], [], [], 0)
    return asking.recv(4096) if readable else None


@pytest.mark.parametrize("message", [HELLO, ASKED], ids=["hello", "asked"])
def test_another_user_gets_no_answer_by_a_real_socket(
    message: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the rights of root, the child sends as this user, and gets one."""
    with listening_and_asking(monkeypatch) as (listening, asking):

        def send() -> int:
            asking.send(message)
            return os.getpid()

        daemon = Daemon(frozenset({as_nobody(send), os.getpid()}), b"config")
        kineto_daemon._serve(listening, daemon)
        stranger = os.geteuid() == 0
        assert (answer_to(asking) is None) is stranger
        assert bool(daemon.given) is (message == ASKED and not stranger)
        asking.send(message)
        kineto_daemon._serve(listening, daemon)
        expected = b"config" if message == ASKED else struct.pack("=i", 1)
        assert content(answer_to(asking)) == expected


def test_a_message_that_is_too_long_gets_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    with listening_and_asking(monkeypatch) as (listening, asking):
        asking.send(HELLO + bytes(kineto_daemon.LONGEST))
        kineto_daemon._serve(listening, Daemon(frozenset(), b""))
        assert answer_to(asking) is None
        asking.send(HELLO)
        kineto_daemon._serve(listening, Daemon(frozenset(), b""))
        assert answer_to(asking) is not None


def rank() -> JobProcess:
    return JobProcess(
        os.getpid(), 1, RANK, "R", 0, 0, 1, "python", (), 0, 0.0, os.geteuid(), None, None, None
    )


def test_a_rank_that_asks_is_traced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kineto_daemon, "AHEAD", 60.0)
    traces = tmp_path / "traces"
    traces.mkdir()

    def process() -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as asking:
            asking.bind(str(tmp_path / "client"))
            until((tmp_path / "dynolog").exists)
            asking.sendto(ASKED, str(tmp_path / "dynolog"))
            lines = content(asking.recv(4096)).decode().splitlines()
        told = dict(line.partition("=")[::2] for line in lines)
        stem = told["ACTIVITIES_LOG_FILE"].removesuffix(".json")
        Path(f"{stem}_{os.getpid()}.json").write_text(told["ACTIVITIES_DURATION_MSECS"])

    thread = threading.Thread(target=process)
    thread.start()
    (taken,) = kineto_daemon.trace_by_kineto([rank()], str(tmp_path), 2.0, traces, lambda _: None)
    thread.join()
    assert taken.path == traces / "rank0.json"
    assert taken.path.read_text() == "2000"
    assert taken.path.stat().st_mode & 0o777 == 0o600
    assert not (tmp_path / "dynolog").exists()


def test_who_never_asks_is_mentioned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kineto_daemon, "AHEAD", 0.0)
    (taken,) = kineto_daemon.trace_by_kineto([rank()], str(tmp_path), 0.1, tmp_path, lambda _: None)
    assert taken.path is None
    assert "did not ask" in str(taken.why)


def test_another_daemon_is_left_alone_and_a_dead_one_s_place_is_taken(tmp_path: Path) -> None:
    place = str(tmp_path / "dynolog")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        other.bind(place)
        with (
            pytest.raises(OccupiedError, match="already runs here"),
            kineto_daemon._listening(str(tmp_path)),
        ):
            pass
    with kineto_daemon._listening(str(tmp_path)) as listening:
        assert listening.getsockname() == place, "Kineto refuses answers from another name"


def test_only_this_user_can_use_the_socket_in_a_folder(tmp_path: Path) -> None:
    usual = os.umask(0o022)
    try:
        with kineto_daemon._listening(str(tmp_path)):
            assert stat.S_IMODE((tmp_path / "dynolog").stat().st_mode) & 0o077 == 0
            assert os.umask(0o022) == 0o022, "what others create has the usual rights"
    finally:
        os.umask(usual)


def test_an_empty_folder_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kineto_daemon, "NAME", f"dynolog-of-test-{os.getpid()}")
    with kineto_daemon._listening("") as listening:
        assert listening.getsockname() == f"\0{kineto_daemon.NAME}\0".encode()


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o722, 0o1777])
def test_a_folder_that_others_can_write_to_is_refused(tmp_path: Path, mode: int) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(OccupiedError, match="written to by other users"), listening_in(folder):
        pass
    assert not list(folder.iterdir())


def listening_in(folder: Path) -> AbstractContextManager[socket.socket]:
    return kineto_daemon._listening(str(folder))


@pytest.mark.parametrize(
    ("owner", "mode", "why"),
    [
        (ME, stat.S_IFDIR | 0o755, None),
        (0, stat.S_IFDIR | 0o755, None),
        (STRANGER, stat.S_IFDIR | 0o755, "another user"),
        (ME, stat.S_IFDIR | 0o775, "other users"),
        (0, stat.S_IFDIR | 0o1777, "other users"),
        (ME, stat.S_IFREG | 0o600, "not a folder"),
    ],
)
def test_why_a_folder_is_unsafe(owner: int, mode: int, why: str | None) -> None:
    found = explain_unsafe_folder(os.stat_result((mode, 1, 1, 1, owner, owner, 0, 0, 0, 0)), ME)
    assert found is None if why is None else why in str(found)


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OccupiedError, match="No such file"), listening_in(tmp_path / "absent"):
        pass


def test_what_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    place = tmp_path / "dynolog"
    place.write_text("mine")
    with pytest.raises(OccupiedError, match="not a socket"), listening_in(tmp_path):
        pass
    assert place.read_text() == "mine"


def test_the_dead_socket_of_another_user_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "dynolog"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        other.bind(str(place))
    monkeypatch.setattr(kineto_daemon, "_check_folder", lambda _: None)
    monkeypatch.setattr(os, "geteuid", lambda: STRANGER)
    with pytest.raises(OccupiedError, match="another user"), listening_in(tmp_path):
        pass
    assert place.is_socket()


def test_what_took_the_place_of_the_socket_is_left_alone(tmp_path: Path) -> None:
    place = tmp_path / "dynolog"
    with listening_in(tmp_path):
        place.unlink()
        place.write_text("new")
    assert place.read_text() == "new"
