"""The job is not affected if a part of the doctor crashes, is killed, or runs out of space."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
from pathlib import Path

import pytest

from tests.support.launching import (
    conduits,
    doctor,
    eventually,
    python,
    read_json,
    terminal,
)

LINES = 20_000
PRINTING = python(
    "import sys\n"
    "print('ready', flush=True)\n"
    "sys.stdin.readline()\n"
    f"for number in range({LINES}): print(number, flush=True)\n"
    "sys.exit(6)\n"
)
EXPECTED = b"".join(b"%d\n" % number for number in range(LINES))


def started(recording: Path) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        doctor(recording, *PRINTING),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout
    assert process.stdout.readline() == b"ready\n"
    eventually("the job's pid", lambda: "job_pid" in read_json(recording / "recording.json"))
    return process


def pumps(recording: Path) -> list[int]:
    """Those whose parent is a guardian."""
    found = conduits(recording)
    return [pid for pid, parent in found.items() if parent in found]


def guardians(recording: Path) -> list[int]:
    found = conduits(recording)
    return [pid for pid, parent in found.items() if parent not in found]


def kill(pids: list[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):  # that of a silent stream ends with the job
            os.kill(pid, signal.SIGKILL)


def test_the_conduit_is_no_child_of_the_doctor(tmp_path: Path) -> None:
    process = started(tmp_path / "r")
    parents = set(conduits(tmp_path / "r").values())
    assert process.pid not in parents
    eventually("a pump for each stream", lambda: len(pumps(tmp_path / "r")) == 2)
    assert process.communicate(b"go\n") == (EXPECTED, b"")
    eventually("the conduits to end", lambda: not conduits(tmp_path / "r"))


def test_the_doctor_is_killed_while_the_job_runs(tmp_path: Path) -> None:
    process = started(tmp_path / "r")
    process.kill()
    assert process.wait() == -signal.SIGKILL
    assert process.communicate(b"go\n") == (EXPECTED, b"")
    assert not (tmp_path / "r/end.json").exists()
    assert (tmp_path / "r/console/stdout.log").read_bytes() == b"ready\n" + EXPECTED


def test_the_doctor_is_killed_and_the_terminal_stays_as_it_was(tmp_path: Path) -> None:
    waiting = f"while [ ! -e {tmp_path}/done ]; do sleep 0.05; done"
    shell = ["sh", "-c", f'"$@"; {waiting}; echo over', "sh"]
    program = doctor(tmp_path / "r", *python("print('job', input())"))
    with terminal([*shell, *program]) as screen:
        info = tmp_path / "r/recording.json"
        # The name is claimed by an empty file, which the first facts replace.
        eventually("the job", lambda: _has_text(info) and "job_pid" in read_json(info))
        os.kill(read_json(info)["doctor_pid"], signal.SIGKILL)
        screen.type(b"typed\n")
        screen.read_until(b"job typed")
        (tmp_path / "done").touch()
        screen.read_until(b"over")
        screen.end()


def _has_text(file: Path) -> bool:
    return file.exists() and file.stat().st_size > 0


@pytest.mark.parametrize("victims", [pumps, guardians])
def test_a_part_of_the_conduit_is_killed(tmp_path: Path, victims: object) -> None:
    assert callable(victims)
    process = started(tmp_path / "r")
    kill(victims(tmp_path / "r"))
    assert process.communicate(b"go\n") == (EXPECTED, b"")
    assert process.returncode == 6


def test_pumps_are_killed_again_and_again_while_they_carry(tmp_path: Path) -> None:
    process = started(tmp_path / "r")
    assert process.stdin
    assert process.stdout
    process.stdin.write(b"go\n")
    process.stdin.close()
    process.stdin = None
    output = b""
    for _ in range(10):
        output += os.read(process.stdout.fileno(), 4096)
        kill(pumps(tmp_path / "r"))
    output += process.communicate()[0]
    assert output == EXPECTED
    assert process.returncode == 6


@pytest.mark.parametrize("place", ["/proc/nothing/here", "/sys/nothing"])
def test_a_recording_that_cannot_be_written(tmp_path: Path, place: str) -> None:
    program = python("import os; print('MGPU_DOCTOR_BOXES' in os.environ); raise SystemExit(4)")
    done = subprocess.run(
        doctor(Path(place), *program), capture_output=True, check=False, cwd=tmp_path
    )
    assert (done.returncode, done.stdout) == (4, b"False\n")
    assert done.stderr.count(b"\n") == 1
    assert b"cannot be written" in done.stderr


def on_full_disk(place: Path) -> tuple[list[str], bytes]:
    """What to put before a command, and what is said of it. Where no disk may be mounted (as in a
    container) files may have no bytes at all."""
    disk = f"mount -t tmpfs -o size=64k none {place} && cat /dev/zero 2> /dev/null > {place}/x"
    unshare = ["unshare", "-m"] if os.getuid() == 0 else ["unshare", "-rm"]
    namespace = [*unshare, "sh", "-c"]
    if subprocess.run(
        [*namespace, f"{disk}; test -s {place}/x"], capture_output=True, check=False
    ).returncode:
        return ["sh", "-c", 'ulimit -f 0; exec "$@"', "sh"], b"File too large"
    return [*namespace, f'{disk}; exec "$@"', "sh"], b"No space left on device"


def test_a_full_disk_from_the_start(tmp_path: Path) -> None:
    before, reason = on_full_disk(tmp_path)
    done = subprocess.run(
        [*before, *doctor(tmp_path / "r", *PRINTING)],
        input=b"go\n",
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (6, b"ready\n" + EXPECTED)
    assert reason in done.stderr
    assert done.stderr.count(b"\n") == 1


def test_files_may_not_grow_any_more(tmp_path: Path) -> None:
    """What a disk that fills up does, for those who are not root: here at 600 bytes a file."""
    done = subprocess.run(
        doctor(tmp_path / "r", *PRINTING),
        input=b"go\n",
        capture_output=True,
        check=False,
        env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},  # else Python keeps a cut file
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (600, 600)),
    )
    assert (done.returncode, done.stdout) == (6, b"ready\n" + EXPECTED)
    assert (tmp_path / "r/console/stdout.log").stat().st_size <= 600


def test_runs_side_by_side(tmp_path: Path) -> None:
    first, second = started(tmp_path / "a"), started(tmp_path / "b")
    assert second.communicate(b"go\n") == (EXPECTED, b"")
    assert first.communicate(b"go\n") == (EXPECTED, b"")
    for name in "ab":
        assert read_json(tmp_path / name / "end.json")["exit_code"] == 6
