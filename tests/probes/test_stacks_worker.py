"""Requests to a rank's worker server: torch's own, and misbehaving ones."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from mgpu_probes.outside.stacks import faulthandler_stacks, worker_socket

from tests.support.stuck_processes import wait_for_call
from tests.support.worker_server import answer, worker_server

SECONDS = 20.0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    return private


_RANK = """\
import ctypes, sys, torch, torch.distributed
from torch._C._distributed_c10d import _WorkerServer
server = _WorkerServer(sys.argv[1])
print("ready", flush=True)
def stuck_here():
    (ctypes.PyDLL(None).sleep if sys.argv[2] == "gil" else sys.stdin.read)(600)
stuck_here()
"""


@contextmanager
def rank(path: Path, how: str, call: str) -> Iterator[None]:
    """A process with torch's own server that hangs; with `gil` it keeps Python's lock."""
    with subprocess.Popen(
        [sys.executable, "-c", _RANK, str(path), how],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            wait_for_call(process.pid, call)
            yield
        finally:
            process.kill()


@pytest.mark.slow
def test_torchs_own_server_answers(folder: Path) -> None:
    path = folder / "rank.sock"
    with rank(path, "wait", "read"):
        assert worker_socket.ask_worker(str(path), "ping", SECONDS) == b"pong"
        text = worker_socket.ask_worker(str(path), "dump_traceback", SECONDS).decode()
        main = next(
            stack for stack in faulthandler_stacks.parse_faulthandler(text) if stack["main"]
        )
        assert [frame[0] for frame in main["frames"]] == ["stuck_here", "<module>"]
        assert "pg_status" in json.loads(
            worker_socket.ask_worker(str(path), "fr_trace_json", SECONDS)
        )
        with pytest.raises(OSError, match="answered 404"):
            worker_socket.ask_worker(str(path), "no_such_handler", SECONDS)


@pytest.mark.slow
def test_with_pythons_lock_held_only_what_needs_it_is_late(folder: Path) -> None:
    path = folder / "rank.sock"
    with rank(path, "gil", "clock_nanosleep"):
        assert worker_socket.ask_worker(str(path), "ping", SECONDS) == b"pong"
        assert "pg_status" in json.loads(
            worker_socket.ask_worker(str(path), "fr_trace_json", SECONDS)
        )
        with pytest.raises(TimeoutError):
            worker_socket.ask_worker(str(path), "dump_traceback", 0.3)


_OURS = """\
import sys
from mgpu_probes.inprocess import worker_server
def stuck_here():
    sys.stdin.read()
print(worker_server.listen(sys.argv[1]), flush=True)
stuck_here()
"""


def test_an_instrumented_rank_answers(folder: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _OURS, str(folder / "host.7.0.box")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        path = process.stdout.readline().decode().strip()
        wait_for_call(process.pid, "read")
        assert worker_socket.ask_worker(path, "ping", SECONDS) == b"pong"
        text = worker_socket.ask_worker(path, "dump_traceback", SECONDS).decode()
        process.kill()
    main = next(stack for stack in faulthandler_stacks.parse_faulthandler(text) if stack["main"])
    assert [frame[0] for frame in main["frames"]] == ["stuck_here", "<module>"]


def test_the_request_and_a_long_path(folder: Path) -> None:
    deep = folder / ("d" * 120)
    deep.mkdir(mode=0o700)
    with worker_server(str(folder / "s"), answer(b"some \xff text")) as requests:
        os.rename(folder / "s", deep / "s")
        assert (
            worker_socket.ask_worker(str(deep / "s"), "wait_counter_values", SECONDS)
            == b"some \xff text"
        )
        os.rename(deep / "s", folder / "s")
    assert requests == ["POST /handler/wait_counter_values HTTP/1.1"]


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (answer(b"sh: py-spy: not found", "500 Internal Server Error"), "answered 500: sh: py-spy"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "not a worker server"),
        (b"", "not a worker server"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na", "answered 200"),
        (answer(bytes(5_000)), "longer than 4096 bytes"),
    ],
)
def test_an_answer_that_is_none(reply: bytes, message: str, folder: Path) -> None:
    path = str(folder / "s")
    with worker_server(path, reply), pytest.raises(OSError, match=message):
        worker_socket.ask_worker(path, "ping", SECONDS, most=4096)


def test_an_answer_that_never_ends_is_given_up(folder: Path) -> None:
    path = str(folder / "s")
    with worker_server(path, answer(b""), drips=True), pytest.raises(TimeoutError):
        worker_socket.ask_worker(path, "ping", 0.3)


def test_a_process_that_does_not_accept_is_given_up(folder: Path) -> None:
    path = str(folder / "s")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        with pytest.raises(TimeoutError):
            worker_socket.ask_worker(path, "ping", 0.2)
    with pytest.raises(ConnectionRefusedError):
        worker_socket.ask_worker(path, "ping", SECONDS)


def test_only_sockets_of_ours_in_folders_of_ours(folder: Path, tmp_path: Path) -> None:
    with worker_server(str(folder / "s"), answer(b"pong")) as requests:
        (tmp_path / "link").symlink_to(folder)
        (folder / "link").symlink_to(folder / "s")
        (folder / "file").touch()
        for path in (tmp_path / "link" / "s", tmp_path / "none" / "s", folder / "none"):
            with pytest.raises(OSError, match=r"link|none"):
                worker_socket.ask_worker(str(path), "ping", SECONDS)
        for name in ("link", "file"):
            with pytest.raises(PermissionError):
                worker_socket.ask_worker(str(folder / name), "ping", SECONDS)
        folder.chmod(0o750)
        with pytest.raises(PermissionError, match="private folder"):
            worker_socket.ask_worker(str(folder / "s"), "ping", SECONDS)
        assert requests == []


@pytest.mark.parametrize("handler", ["", "../ping", "ping HTTP/1.1\r\nX: y", "p g", "ping?a b"])
def test_a_handler_is_a_name(handler: str, folder: Path) -> None:
    with pytest.raises(ValueError, match="no handler"):
        worker_socket.ask_worker(str(folder / "s"), handler, SECONDS)
