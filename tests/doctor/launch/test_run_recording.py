"""The recording of a run, and what `run` rejects."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.launching import doctor, eventually, python, read_json, read_lines

CHILDREN = python(
    "import os, subprocess, sys\n"
    "say = 'import os, sys; sys.stdout.write(str(os.getpid()) + chr(10)); '\n"
    "say += 'sys.stdout.flush(); sys.stdin.readline(); '\n"
    "def child(end):\n"
    "    pipe = subprocess.PIPE\n"
    "    return subprocess.Popen([sys.executable, '-c', say + end], stdin=pipe)\n"
    "left = [child('sys.exit(3)'), child('os.kill(os.getpid(), 9)')]\n"
    "waited_for = child('sys.exit(4)')\n"
    "sys.stdin.readline()\n"
    "for one in left: one.stdin.close()\n"
    "waited_for.communicate(b'go')\n"
    "sys.stdin.readline()\n"
    "sys.exit(1)\n"
)


def run(command: list[str], **more: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(command, capture_output=True, check=False, env={**os.environ, **more})


def test_how_the_children_ended_is_recorded(tmp_path: Path) -> None:
    process = subprocess.Popen(
        doctor(tmp_path / "r", *CHILDREN), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin
    assert process.stdout
    pids = [int(process.stdout.readline()) for _ in range(3)]
    host = next((tmp_path / "r" / "hosts").iterdir())
    samples, exits = host / "host.jsonl", host / "exits.jsonl"

    def seen() -> set[str]:
        lines = read_lines(samples) if samples.exists() else []
        return {pid for sample in lines for pid in sample["processes"]}

    def ended() -> dict[int, dict[str, Any]]:
        lines = read_lines(exits) if exits.exists() else []
        return {line["pid"]: line for line in lines}

    eventually("a sample of all", lambda: {str(pid) for pid in pids} <= seen())
    process.stdin.write(b"go\n")
    process.stdin.flush()
    eventually("their ends", lambda: ended().keys() >= {*pids})
    process.communicate(b"end\n")
    ends = ended()
    assert process.returncode == 1
    endings = {(ends[pid]["exit_code"], ends[pid]["signal"]) for pid in pids}
    told = {(3, None), (None, signal.SIGKILL)}
    assert told < endings
    # Of one that was waited for at once, only kernels from 6.15 on are sure to tell.
    assert endings - told <= {(4, None), (None, None)}
    assert all(ends[pid]["how"] in ("zombie", "pidfd") for pid in pids)
    job = read_json(tmp_path / "r/recording.json")["job_pid"]
    assert (ends[job]["exit_code"], ends[job]["how"]) == (1, "wait")


def test_what_was_run_is_recorded_and_private(tmp_path: Path) -> None:
    done = run(doctor(tmp_path / "r", "sh", "-c", "exit 3"))
    assert done.returncode == 3
    info = read_json(tmp_path / "r/recording.json")
    assert info["schema"] == "mgpu-doctor/recording/1"
    assert (info["kind"], info["command"]) == ("run", ["sh", "-c", "exit 3"])
    assert (info["cwd"], info["host"]) == (os.getcwd(), os.uname().nodename)
    end = read_json(tmp_path / "r/end.json")
    assert (end["exit_code"], end["signal"], end["asked"]) == (3, None, None)
    assert end["ended"] >= info["started"]
    assert end["doctor_cpu_seconds"] > 0
    for path in [tmp_path / "r", *(tmp_path / "r").rglob("*")]:
        wanted = 0o700 if path.is_dir() else 0o600
        assert stat.S_IMODE(path.stat().st_mode) == wanted, path


def test_recordings_go_home_without_a_folder(tmp_path: Path) -> None:
    command = [part for part in doctor(tmp_path, "true") if part not in ("--dir", str(tmp_path))]
    run(command, MGPU_DOCTOR_HOME=str(tmp_path / "home"))
    (recording,) = (tmp_path / "home" / "runs").iterdir()
    assert recording.name == read_json(recording / "recording.json")["id"]


def test_the_probe_finds_its_boxes_and_the_users_path_stays(tmp_path: Path) -> None:
    show = 'echo "$MGPU_DOCTOR_BOXES"; echo "$PYTHONPATH"'
    done = run(doctor(tmp_path / "r", "sh", "-c", show), PYTHONPATH="/theirs")
    boxes, path = done.stdout.decode().splitlines()
    assert Path(boxes) == tmp_path / "r" / "hosts" / os.uname().nodename / "boxes"
    assert path.endswith("/mgpu_probes/inject:/theirs")


@pytest.mark.parametrize(("name", "code"), [("/absent/x", 127), ("no-such", 127), ("/tmp", 126)])
def test_a_command_that_cannot_be_started(tmp_path: Path, name: str, code: int) -> None:
    done = run(doctor(tmp_path / "r", name))
    assert (done.returncode, done.stdout) == (code, b"")
    assert done.stderr.count(b"\n") == 1
    assert not (tmp_path / "r").exists()


def test_a_script_whose_interpreter_is_missing(tmp_path: Path) -> None:
    (tmp_path / "script").write_text("#!/absent/interpreter\n")
    (tmp_path / "script").chmod(0o755)
    done = run(doctor(tmp_path / "r", str(tmp_path / "script")))
    assert done.returncode == 126
    assert done.stderr.count(b"\n") == 1


def test_nothing_starts_over_somebody_elses_folder(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("x")
    done = run(doctor(tmp_path, "touch", str(tmp_path / "started")))
    assert done.returncode == 2
    assert done.stderr.count(b"\n") == 1
    assert [entry.name for entry in tmp_path.iterdir()] == ["precious"]


def test_a_recording_is_never_written_over(tmp_path: Path) -> None:
    run(doctor(tmp_path / "r", "true"))
    before = (tmp_path / "r/recording.json").read_bytes()
    done = run(doctor(tmp_path / "r", "true"))
    assert done.returncode == 2
    assert b"already contains a recording" in done.stderr
    assert (tmp_path / "r/recording.json").read_bytes() == before


def test_json_goes_where_it_is_wanted(tmp_path: Path) -> None:
    options = ["-q", "--json-out", str(tmp_path / "out.json")]
    done = run(doctor(tmp_path / "r", "sh", "-c", "exit 3", options=options))
    assert (done.returncode, done.stderr) == (3, b"")
    document = read_json(tmp_path / "out.json")
    assert document["schema"] == "mgpu-doctor/diagnosis/1"
    assert document["job"]["exit_code"] == 3
    assert stat.S_IMODE((tmp_path / "out.json").stat().st_mode) == 0o600


def test_json_that_cannot_be_written_is_refused_before_the_job(tmp_path: Path) -> None:
    options = ["--json-out", str(tmp_path / "absent" / "out.json")]
    done = run(doctor(tmp_path / "r", "touch", str(tmp_path / "started"), options=options))
    assert done.returncode == 2
    assert not list(tmp_path.iterdir())


def test_of_two_runs_that_name_one_folder_one_is_refused(tmp_path: Path) -> None:
    (tmp_path / "r").mkdir()
    command = doctor(tmp_path / "r", *python("import time; time.sleep(0.5)"))
    both = [subprocess.Popen(command, stderr=subprocess.PIPE) for _ in range(4)]
    said = [one.communicate()[1] for one in both]
    assert sorted(one.returncode for one in both) == [0, 2, 2, 2]
    assert sum(b"already contains a recording" in one or b"not empty" in one for one in said) == 3


def test_a_job_starts_though_chance_repeats_its_id(tmp_path: Path) -> None:
    """Only a folder that the user named is a reason not to start a job."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os\nos.urandom = lambda count: bytes(count)\n"
    )
    command = [sys.executable, "-m", "mgpu_doctor", "run", "-q", "--", *python("print('ran')")]
    changed = {"MGPU_DOCTOR_HOME": str(tmp_path / "home"), "PYTHONPATH": str(tmp_path)}
    environment = {**os.environ, **changed}
    both = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for _ in range(2)
    ]
    outs = [one.communicate() for one in both]
    assert [one.returncode for one in both] == [0, 0]
    assert [out for out, _ in outs] == [b"ran\n", b"ran\n"]
    recordings = list((tmp_path / "home/runs").iterdir())
    assert len(recordings) + sum(b"the job runs without one" in err for _, err in outs) == 2
