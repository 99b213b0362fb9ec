"""The probe's threads do no harm: they receive no signals, and no client waits in vain."""

from __future__ import annotations

import ast
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from mgpu_probes.inprocess import masked_threads, worker_server
from mgpu_probes.outside.stacks.worker_socket import ask_worker

from tests.support.jobs import until
from tests.support.launching import eventually

SECONDS = 60.0
INPROCESS = Path(masked_threads.__file__).parent
LISTENS = """
import os, signal, sys, time
from mgpu_probes.inprocess import worker_server
def slow():
    open(sys.argv[2], "w").close()
    while not os.path.exists(sys.argv[3]):
        time.sleep(0.005)
    return bytes(1 << 24)
worker_server.handlers["slow"] = slow
print(worker_server.listen(sys.argv[1]), flush=True)
"""


def listening(folder: Path, then: str) -> tuple[subprocess.Popen[str], str]:
    """A program that answers on a socket, and what it does then."""
    folder.chmod(0o700)
    arguments = [str(folder / name) for name in ("host.1.0.box", "asked", "answer")]
    program = subprocess.Popen(
        [sys.executable, "-c", LISTENS + then, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert program.stdout
    return program, program.stdout.readline().strip()


def test_a_client_that_gave_up_ends_nobody(tmp_path: Path) -> None:
    """A program may have set SIGPIPE back to its deadly default, as command-line tools do."""
    then = "signal.signal(signal.SIGPIPE, signal.SIG_DFL)\nsys.stdin.readline()\n"
    program, path = listening(tmp_path, then)
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(path)
        client.sendall(b"POST /handler/slow HTTP/1.1\r\n\r\n")
        eventually("the question", (tmp_path / "asked").exists)
    (tmp_path / "answer").touch()
    assert ask_worker(path, "ping", SECONDS) == b"pong"
    program.communicate("end\n")
    assert program.returncode == 0


@pytest.mark.parametrize("name", ["SIGUSR1", "SIGTERM", "SIGRTMIN"])
def test_a_signal_that_the_program_waits_for_reaches_it(tmp_path: Path, name: str) -> None:
    """It blocks the signal and asks for it: in any thread that does not block it, it is deadly."""
    then = (
        f"signal.pthread_sigmask(signal.SIG_BLOCK, [signal.{name}])\n"
        f"os.kill(os.getpid(), signal.{name})\n"
        f"print(signal.sigtimedwait([signal.{name}], 60).si_signo, flush=True)\n"
    )
    program, _ = listening(tmp_path, then)
    assert program.stdout
    out = program.stdout.read()  # `communicate` passes over what came with the line before
    assert (program.wait(), out.strip()) == (0, str(int(getattr(signal, name))))


def test_all_but_faults_are_blocked_in_a_thread_of_the_probe() -> None:
    read: list[str] = []
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])

    def look() -> None:
        with open("/proc/thread-self/status", encoding="ascii") as status:
            read.extend(line for line in status if line.startswith("SigBlk:"))

    masked_threads.start(look)
    until(lambda: bool(read))
    blocked = int(read[0].split()[1], 16)
    passing = {number for number in signal.valid_signals() if not blocked >> (number - 1) & 1}
    # SIGKILL and SIGSTOP cannot be blocked.
    assert passing == {*masked_threads.FAULTS, signal.SIGKILL, signal.SIGSTOP}
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before


def test_every_thread_of_the_probe_is_started_so() -> None:
    for path in INPROCESS.rglob("*.py"):
        names = {
            node.attr if isinstance(node, ast.Attribute) else node.id
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Attribute | ast.Name)
        }
        starts = names & {"start_new_thread", "Thread", "ThreadPoolExecutor", "Timer"}
        assert not starts or path.name == "masked_threads.py", path


def test_a_client_of_a_rank_that_died_is_reported_so_at_once(tmp_path: Path) -> None:
    """Though a forked child, as a data loader's worker is one, lives on."""
    then = (
        "if not os.fork():\n"
        "    print(os.getpid(), flush=True)\n"
        "    time.sleep(600)\n"
        "    os._exit(0)\n"
        "sys.stdin.readline()\n"
    )
    program, path = listening(tmp_path, then)
    assert program.stdout
    child = int(program.stdout.readline())
    waiting = socket.socket(socket.AF_UNIX)
    try:
        waiting.connect(path)  # of the rank itself, which never answers it
        program.kill()
        program.wait()
        with pytest.raises(ConnectionRefusedError):
            ask_worker(path, "ping", SECONDS)
        waiting.settimeout(SECONDS)
        with suppress(ConnectionResetError):
            assert waiting.recv(1) == b""
    finally:
        waiting.close()
        os.kill(child, signal.SIGKILL)


def test_a_folder_that_others_may_enter_has_no_socket(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    assert worker_server.listen(str(tmp_path / "host.1.0.box")) is None
    assert not list(tmp_path.iterdir())


def test_the_socket_is_private_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        tmp_path.chmod(0o700)
        path = worker_server.listen(str(tmp_path / "host.1.0.box"))
        assert path is not None
        assert os.stat(path).st_mode & 0o777 == 0o600
        assert os.umask(0) == 0  # all threads share it: it was never changed
    finally:
        os.umask(before)
