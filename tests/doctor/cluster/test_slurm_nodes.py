"""The nodes of a Slurm job by what Slurm's commands print, and what its messages mean."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mgpu_doctor.cluster.slurm_nodes import LEAST, Slurm, find_nodes
from mgpu_doctor.errors import DoctorError

SQUEUE = "#!/bin/sh\nprintf '%s' '{out}'\nprintf '%s' '{error}' >&2\nexit {code}\n"
SCONTROL = '#!/bin/sh\n[ "$3" = "gpu[01-02]" ] && printf "gpu01\\ngpu02\\n"\n'


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for Slurm's commands, before all others on PATH."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    _write(tmp_path / "scontrol", SCONTROL)
    return tmp_path


def _write(script: Path, text: str) -> None:
    script.write_text(text)
    script.chmod(0o700)


def _print(commands: Path, out: str, error: str = "", code: int = 0) -> None:
    _write(commands / "squeue", SQUEUE.format(out=out, error=error, code=code))


def test_the_nodes_are_listed_and_reached_by_the_jobs_own_number(commands: Path) -> None:
    _print(commands, "4712|4711_3|RUNNING|gpu[01-02]\n")
    nodes, engine = find_nodes("4711_3")
    assert nodes == ("gpu01", "gpu02")
    command = engine.command("gpu02", "exec sh")
    assert command[:3] == ["srun", "--jobid=4712", "--nodelist=gpu02"]
    assert "--overlap" in command
    assert "--gres=none" in command
    assert command[-3:] == ["/bin/sh", "-c", "exec sh"]
    _, whole = find_nodes("4711_3", whole=True)
    assert {*command} - {*whole.command("gpu02", "exec sh")} == {*LEAST}


@pytest.mark.parametrize(
    ("printed", "words", "exit_code"),
    [
        (("", "slurm_load_jobs error: Invalid job id specified\n", 1), "knows no job 4711", 3),
        (("", "", 0), "knows no job 4711", 3),
        (("", "squeue: error: Unable to contact slurm controller\n", 1), "scontrol ping", 3),
        (("4711|4711|PENDING|\n", "", 0), "has not started (PENDING)", 3),
        (("4711|4711|FAILED|gpu[01-02]\n", "", 0), "has ended (FAILED)", 3),
        (("4711|4711|RUNNING|gpu[9\n", "", 0), "scontrol fails with", 3),
        (
            ("8|4711_0|RUNNING|gpu01\n9|4711_1|RUNNING|gpu02\n7|4711_[2-9]|PENDING|\n", "", 0),
            "2 running jobs: name one: --slurm 4711_0, --slurm 4711_1.",
            2,
        ),
    ],
)
def test_what_is_no_running_job(
    commands: Path, printed: tuple[str, str, int], words: str, exit_code: int
) -> None:
    _print(commands, *printed)
    with pytest.raises(DoctorError) as raised:
        find_nodes("4711")
    assert words in str(raised.value)
    assert raised.value.exit_code == exit_code


def test_wrong_numbers_and_missing_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for job in ("", "latest", "--me", "1;2", "12 "):
        with pytest.raises(DoctorError, match="not a Slurm job number") as raised:
            find_nodes(job)
        assert raised.value.exit_code == 2
    with pytest.raises(DoctorError, match=r"squeue cannot be started.*login node") as raised:
        find_nodes("4711")
    assert raised.value.exit_code == 3


@pytest.mark.parametrize(
    ("text", "reason", "remedy"),
    [
        (
            "srun: error: Unable to create step for job 7: Access/permission denied\n",
            "permission denied",
            "only the job's owner",
        ),
        (
            "srun: error: Slurm job 7 has expired\n"
            "srun: Check SLURM_JOB_ID environment variable. Expired or invalid job 7\n",
            "'Slurm job 7 has expired'",
            "the job has ended",
        ),
        (
            "srun: error: Unable to create step for job 7: Requested node configuration is not "
            "available\n",
            "not available",
            "squeue --jobs=7",
        ),
        ("srun: unrecognized option '--overlap'\n", "--overlap", "Slurm 20.11"),
        (
            "/bin/sh: 1: exec: python3: not found\n"
            "srun: error: gpu01: task 0: Exited with exit code 127\n",
            "finds no python3",
            "install Python 3.10",
        ),
        (
            "slurmstepd: error: no room\nsrun: error: gpu01: task 0: Exited with exit code 1\n",
            "no room",
            "srun --overlap --jobid=7",
        ),
        (
            "srun: error: Task launch for StepId=7.9 failed on node gpu01: Socket timed out\n"
            "srun: error: Application launch failed: Socket timed out\nsrun: Job step aborted\n",
            "failed on node gpu01",
            "sinfo -R",
        ),
        ("", "exit code 9", "must work"),
    ],
)
def test_messages(text: str, reason: str, remedy: str) -> None:
    trouble = Slurm("7").explain("gpu01", 9, text)
    assert reason in trouble.reason
    assert remedy in trouble.remedy
