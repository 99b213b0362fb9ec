"""The start of a Ray cluster, as far as it works without Ray."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from mgpu_trainers import catalogue
from mgpu_trainers.pytorch import ray_cluster
from mgpu_trainers.pytorch.ray_worker import SharedOutput

RAY = catalogue.find("ray-torch")

PRINTS = """
import os, sys
from mgpu_trainers.pytorch.ray_worker import take_output
take_output(sys.argv[1])
print("from Python")
os.write(1, b"from C\\n")
print("trouble", file=sys.stderr)
"""

HAS_CHILDREN = """
import os, signal, subprocess, sys
from mgpu_trainers.pytorch import ray_cluster
ray_cluster._adopt_orphans()
leaves = "import os, signal; pid = os.fork(); pid and [print(pid), exit()]; signal.pause()"
subprocess.run([sys.executable, "-c", leaves], check=True)
ray_cluster._end_children(0)
"""


class FailedError(Exception):
    """As Ray Train's errors: what failed, by rank."""

    def __init__(self, **ranks: BaseException) -> None:
        super().__init__("Training failed due to worker errors:\nlast line")
        self.worker_failures = {int(name[1:]): error for name, error in ranks.items()}


def test_the_command_starts_ray_and_names_what_trains() -> None:
    command = catalogue.command(RAY, 3, {"steps": 5})
    assert command[1:5] == ["-m", "mgpu_trainers.pytorch.ray_cluster", "--ranks", "3"]
    assert command[5:] == ["mgpu_trainers.pytorch.ray_ddp", "--steps", "5"]
    assert catalogue.command(RAY, None, {})[4] == "2"


def test_a_fault_may_name_any_of_the_ranks_before_they_are_started() -> None:
    options = ["--fault", "kill:rank=3,step=2"]
    assert catalogue.arguments(RAY, options, 4).fault == options[1:]
    with pytest.raises(SystemExit) as refused:
        catalogue.arguments(RAY, options, 3)
    assert refused.value.code == 2


@pytest.mark.slow
def test_a_worker_prints_where_the_one_prints_who_started_it(tmp_path: Path) -> None:
    program = (
        "import subprocess, sys; from pathlib import Path\n"
        "from mgpu_trainers.pytorch.ray_worker import SharedOutput\n"
        "shared = SharedOutput(Path(sys.argv[1]))\n"
        "subprocess.run([sys.executable, '-c', sys.argv[2], sys.argv[1]], check=True,\n"
        "    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "output"), PRINTS]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (ended.stdout, ended.stderr) == ("from Python\nfrom C\n", "trouble\n")
    assert SharedOutput(tmp_path / "other").path.is_socket()


@pytest.mark.slow
def test_what_ray_leaves_behind_is_ended() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", HAS_CHILDREN], capture_output=True, text=True, check=True, timeout=60
    )
    with pytest.raises(ProcessLookupError):
        os.kill(int(ended.stdout), 0)


def test_only_this_user_can_read_the_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {"RAY_ADDRESS": "192.0.2.7:6379", "PATH": ""}
    monkeypatch.setattr(os, "environ", environment)
    ray_cluster._prepare(tmp_path, threads=2)
    token = Path(environment["RAY_AUTH_TOKEN_PATH"])
    assert token.stat().st_mode & 0o777 == 0o600
    assert len(token.read_text()) == 64
    assert environment["RAY_AUTH_MODE"] == "token"
    assert environment["OMP_NUM_THREADS"] == "2"
    assert "RAY_ADDRESS" not in environment


def test_who_failed_is_reported_by_rank(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        ray_cluster._report_failure(FailedError(r1=ValueError("odd rows\nmore"), r0=RuntimeError()))
        == 1
    )
    assert capsys.readouterr().err.splitlines() == [
        "ray-torch: rank 0 failed: RuntimeError: ",
        "ray-torch: rank 1 failed: ValueError: odd rows",
    ]
    assert ray_cluster._report_failure(FailedError(r0=SystemExit(3))) == 3
    assert ray_cluster._report_failure(FailedError(r0=SystemExit("no GPU"), r1=SystemExit(0))) == 1
    assert ray_cluster._report_failure(FailedError()) == 1
    assert capsys.readouterr().err.splitlines()[-1] == "ray-torch: last line"


def test_without_ray_one_sentence_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(catalogue, "missing", lambda _trainer: "needs Ray Train")
    with pytest.raises(SystemExit) as refused:
        ray_cluster.main(["--ranks", "2", RAY.module])
    assert refused.value.code == 2
    assert capsys.readouterr().err == "ray-torch needs Ray Train.\n"
