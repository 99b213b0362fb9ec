"""Ranks started by `apart`, which may outlive each other."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from mgpu_trainers import apart

from tests.support.jobs import gone, until

PROGRAM = r"""
import os, signal, sys
rank = os.environ["RANK"]
assert os.environ["WORLD_SIZE"] == "2" and sys.argv[1:] == ["--steps", "7"]
os.write(1, b"%d\n" % os.getpid())
if rank == "1":
    signal.pause()
os.kill(os.getpid(), signal.SIGKILL)
"""


class Child:
    """A process that ends when it is asked for the n-th time."""

    def __init__(self, *codes: int | None) -> None:
        self.codes = list(codes)

    def poll(self) -> int | None:
        return self.codes.pop(0) if len(self.codes) > 1 else self.codes[0]

    @property
    def returncode(self) -> int | None:
        return self.codes[0]


def watched(capsys: pytest.CaptureFixture[str], *children: Child) -> tuple[int, str]:
    code = apart.wait_for_server("trainer", children)  # type: ignore[arg-type]  # they are asked alike
    return code, capsys.readouterr().err


def test_a_worker_that_dies_is_reported_once_and_the_others_go_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apart, "POLL_INTERVAL", 0)
    children = (Child(None, None, None, None, None, None, 0), Child(None, -9), Child(None, None, 3))
    assert watched(capsys, *children) == (
        0,
        "trainer: rank 1 was killed by SIGKILL; the others go on\n"
        "trainer: rank 2 ended with exit code 3; the others go on\n",
    )


def test_without_the_server_it_is_over(capsys: pytest.CaptureFixture[str]) -> None:
    code, told = watched(capsys, Child(-11), Child(1))
    assert code == -11
    assert told == (
        "trainer: rank 0, the server, was killed by SIGSEGV; training cannot continue\n"
    )


def test_a_server_that_stands_without_workers_is_not_waited_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apart, "POLL_INTERVAL", 0)
    monkeypatch.setattr(apart, "PATIENCE", 0)
    code, told = watched(capsys, Child(None), Child(1), Child(1))
    assert code == 1
    assert told.splitlines()[-1] == (
        "trainer: rank 0, the server, goes on without workers; ending it"
    )


@pytest.mark.slow
def test_it_ends_as_rank_0_did_and_leaves_nobody(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    start = (
        "import sys; from mgpu_trainers import apart; apart.PATIENCE = 0.2; sys.exit(apart.main())"
    )
    ended = subprocess.run(
        [sys.executable, "-c", start, "--ranks", "2", "program", "--steps", "7"],
        env={**os.environ, "PYTHONPATH": str(tmp_path), "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 128 + 9, ended.stderr
    assert ended.stderr.splitlines() == [
        "program: rank 0, the server, was killed by SIGKILL; training cannot continue"
    ]
    assert [path.name for path in tmp_path.iterdir() if path.is_dir() and path.name[0] != "_"] == []
    pids = [int(line) for line in ended.stdout.split()]
    assert pids
    assert not any(map(psutil.pid_exists, pids))


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_nobody_outlives_the_launcher(tmp_path: Path, number: signal.Signals) -> None:
    program = 'import os, signal\nos.write(1, b"%d\\n" % os.getpid())\nsignal.pause()\n'
    (tmp_path / "program.py").write_text(program)
    with subprocess.Popen(
        [sys.executable, "-m", "mgpu_trainers.apart", "--ranks", "2", "program"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        stdout=subprocess.PIPE,
    ) as launcher:
        assert launcher.stdout
        ranks = [int(launcher.stdout.readline()) for _ in range(2)]
        launcher.send_signal(number)
        assert launcher.wait() == -number
        until(lambda: all(map(gone, ranks)))
