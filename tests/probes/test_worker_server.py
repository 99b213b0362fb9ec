"""What a rank's socket answers: only to its own user, whatever the request."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from mgpu_probes.inprocess import worker_server
from mgpu_probes.outside.stacks.worker_socket import ask_worker

from tests.support.jobs import until
from tests.support.other_user import NOBODY, as_nobody

SECONDS = 60.0


@pytest.fixture
def listening(tmp_path: Path) -> str:
    tmp_path.chmod(0o700)
    path = worker_server.listen(str(tmp_path / "host.1.0.box"))
    assert path is not None
    return path


def test_it_is_private_and_beside_the_box(listening: str, tmp_path: Path) -> None:
    assert Path(listening) == tmp_path / "host.1.0.sock"
    assert stat.S_IMODE(os.stat(listening).st_mode) == 0o600


def test_the_stacks_of_all_threads(listening: str) -> None:
    there, over = threading.Event(), threading.Event()

    def stands() -> None:
        there.set()
        over.wait()

    thread = threading.Thread(target=stands)
    thread.start()
    there.wait()
    try:
        text = ask_worker(listening, "dump_traceback", SECONDS).decode()
    finally:
        over.set()
        thread.join()
    assert "test_the_stacks_of_all_threads" in text
    assert " in stands" in text


def test_a_handler_that_was_added(listening: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(worker_server.handlers, "fr_trace", lambda: b"\x80dump")
    assert ask_worker(listening, "fr_trace", SECONDS) == b"\x80dump"
    with pytest.raises(OSError, match="404"):
        ask_worker(listening, "unheard_of", SECONDS)


def test_a_command_is_given_its_numbers_and_nothing_else(
    listening: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(worker_server.commands, "trace_begin", lambda given: repr(given).encode())
    asked = "trace_begin?at=12&steps=3&words=no&big=99999999999999999999&empty="
    assert ask_worker(listening, asked, SECONDS) == b"{'at': 12, 'steps': 3}"
    assert ask_worker(listening, "trace_begin", SECONDS) == b"{}"


def test_a_handler_that_fails_hurts_nobody(
    listening: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail() -> bytes:
        raise RuntimeError("no process group")

    monkeypatch.setitem(worker_server.handlers, "fr_trace", fail)
    with pytest.raises(OSError, match="not a worker server"):
        ask_worker(listening, "fr_trace", SECONDS)
    assert ask_worker(listening, "ping", SECONDS) == b"pong"
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    "nonsense",
    [b"", b"\0" * 9000, b"GET\r\n\r\n", b"POST / / /\r\n"],
    ids=["nothing", "far too long", "two words short", "a word too many"],
)
def test_nonsense_is_no_request(listening: str, nonsense: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as asked:
        asked.connect(listening)
        asked.sendall(nonsense)
        asked.shutdown(socket.SHUT_WR)
        with suppress(ConnectionResetError):  # what was sent was not read to its end
            asked.recv(100)
    assert ask_worker(listening, "ping", SECONDS) == b"pong"


def test_a_path_of_any_length(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 20) / ("longer" * 20)
    folder.mkdir(parents=True, mode=0o700)
    path = worker_server.listen(str(folder / "host.1.0.box"))
    assert path is not None
    assert ask_worker(path, "ping", SECONDS) == b"pong"


def test_nowhere_to_listen_is_no_trouble(tmp_path: Path) -> None:
    (tmp_path / "host.1.0.sock").write_text("taken")
    assert worker_server.listen(str(tmp_path / "host.1.0.box")) is None


def test_it_goes_with_its_process_and_not_with_a_child_of_it(tmp_path: Path) -> None:
    program = (
        "import os, sys\n"
        "from mgpu_probes.inprocess import worker_server\n"
        "print(worker_server.listen(sys.argv[1]), flush=True)\n"
        "if not os.fork(): sys.exit()\n"
        "os.wait()\n"
        "print(os.path.exists(sys.argv[2]))\n"
    )
    box, path = tmp_path / "host.1.0.box", tmp_path / "host.1.0.sock"
    done = subprocess.run(
        [sys.executable, "-c", program, str(box), str(path)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [str(path), "True"]
    assert done.stderr == ""
    until(lambda: not path.exists())


def test_another_user_who_can_connect_gets_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel says who asks. Where nobody can become another user, the rank is one."""
    if os.geteuid() != 0:
        monkeypatch.setattr(os, "geteuid", lambda: NOBODY)
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    folder.chmod(0o711)
    path = str(folder / "open.sock")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        os.chmod(path, 0o777)
        listener.listen()

        def serve() -> None:
            client, _ = listener.accept()
            with client:
                worker_server._answer(client)

        def question() -> str:
            with socket.socket(socket.AF_UNIX) as asking:
                asking.connect(path)
                with suppress(ConnectionError):
                    asking.sendall(b"GET /handler/ping HTTP/1.0\r\n\r\n")
                    return b"".join(iter(lambda: asking.recv(100), b"")).decode()
                return ""

        threading.Thread(target=serve, daemon=True).start()
        assert as_nobody(question) == ""
        if os.geteuid() == 0:
            threading.Thread(target=serve, daemon=True).start()
            assert "pong" in question()
    shutil.rmtree(folder)
