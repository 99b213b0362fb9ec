"""`run` on each node of a real Slurm step: nodes that share a home, nodes with homes of their own,
and a node that is lost. The nodes are those of `slurm_cluster`: one machine, two names."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from mgpu_doctor.recording.box import read_box
from tests.support.jobs import JOBS, alone, until
from tests.support.slurm_cluster import can_run_daemons, slurm_cluster

pytestmark = pytest.mark.slow

NODES = ("node-a", "node-b")
ROOT = Path(__file__).parents[2]
SLOW = ("--fault", "forward", "--rank", "1", "--ms", "60")
RANK = "export RANK=$SLURM_PROCID LOCAL_RANK=0 WORLD_SIZE=2 LOCAL_WORLD_SIZE=1 OMP_NUM_THREADS=1"
PLACE = "export MASTER_ADDR=node-a MASTER_PORT=29541 GLOO_SOCKET_IFNAME=lo"
SHARED, OWN = "home", "home-$SLURMD_NODENAME"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a cluster whose commands are on PATH."""
    if not can_run_daemons():
        pytest.skip("node daemons in namespaces need root")
    folder = tmp_path_factory.mktemp("slurm")
    with ExitStack() as stack:
        stack.enter_context(alone())
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        for name, value in stack.enter_context(slurm_cluster(folder, *NODES)).items():
            patch.setenv(name, value)
        yield folder


def start(cluster: Path, home: str, *options: str) -> subprocess.Popen[str]:
    """A step with `mgpu-doctor run` on each node. `home`: the doctor's home, in the shell of a
    node."""
    script = shlex.join((sys.executable, str(JOBS / "plain_ddp.py"), *options))
    doctor = shlex.join((sys.executable, "-m", "mgpu_doctor", "run", "--"))
    place = f"export MGPU_DOCTOR_HOME={cluster}/{home}"
    line = f"cd {ROOT} && {RANK} && {PLACE} && {place} && exec {doctor} {script}"
    step = ("srun", "--label", "--job-name=train", "--nodes=2", "sh", "-c", line)
    return subprocess.Popen(step, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def recording_of(home: Path) -> Path:
    (recording,) = (home / "runs").iterdir()
    return recording


def lines_of_the_doctor(text: str, task: int) -> list[str]:
    return [line for line in text.splitlines() if line.startswith(f"{task}: mgpu-doctor: ")]


def diagnose(*recordings: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "mgpu_doctor", "diagnose", *map(str, recordings), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.stdout, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def assert_names_the_slow_rank(found: dict[str, Any]) -> None:
    assert found["job"]["outcome"] == "completed"
    assert [(rank["rank"], rank["host"]) for rank in found["ranks"]] == [*enumerate(NODES)]
    first = found["findings"][0]
    assert first["code"] == "straggler-compute"
    assert [(one["rank"], one["host"]) for one in first["culprits"]] == [(1, "node-b")]


def test_nodes_that_share_a_home_make_one_recording(cluster: Path) -> None:
    step = start(cluster, SHARED, "--steps", "100", *SLOW)
    _, errors = step.communicate(timeout=180)
    assert step.returncode == 0, errors
    recording = recording_of(cluster / SHARED)
    assert_names_the_slow_rank(diagnose(recording))
    assert "! Rank 1 is slowing down the other ranks" in errors
    assert "(node-b, pid" in errors
    (line,) = lines_of_the_doctor(errors, 1)
    assert (
        f"node 2 of 2 has ended; the first node prints the diagnosis; the recording is {recording}"
        in line
    )
    assert (recording / "verdict.json").exists()


def test_the_first_node_fetches_what_others_write_on_their_own_disks(cluster: Path) -> None:
    step = start(cluster, OWN, "--steps", "300", *SLOW)
    _, errors = step.communicate(timeout=240)
    assert step.returncode == 0, errors
    found = diagnose(recording_of(cluster / "home-node-a"))
    assert_names_the_slow_rank(found)
    assert [gap for gap in found["unexamined"] if "node" in gap["probe"]] == []
    assert "! Rank 1 is slowing down the other ranks" in errors
    (line,) = lines_of_the_doctor(errors, 1)
    assert f"its part of the recording is {recording_of(cluster / 'home-node-b')}" in line
    half = diagnose(recording_of(cluster / "home-node-b"))
    assert [rank["host"] for rank in half["ranks"]] == ["node-b"]
    assert "1 other node" in {gap["probe"] for gap in half["unexamined"]}


@pytest.mark.parametrize("home", [SHARED, OWN])
def test_a_node_that_is_lost_is_named_from_its_last_copy(cluster: Path, home: str) -> None:
    """All of its processes are killed at once, its `run` and the agent too."""
    place = f"lost/{home}"
    step = start(cluster, place, "--steps", "100000", *SLOW)
    first = cluster / place.replace("$SLURMD_NODENAME", "node-a")
    until(lambda: len(list(first.glob("runs/*/hosts/node-b/boxes/*.box"))) == 1, 120)
    (box,) = first.glob("runs/*/hosts/node-b/boxes/*.box")
    until(lambda: len(read_box(box).steps) > 100, 120)
    (job,) = run("squeue", "--noheader", "--format=%A").split()
    inside = ("srun", "--overlap", f"--jobid={job}", "--nodelist=node-b", "--nodes=1", "--ntasks=1")
    for signal in ("-STOP", "-KILL"):  # else `run` may see the rank's end first, and record it
        run(*inside, "pkill", signal, "-f", "plain_ddp|mgpu")
    _, errors = step.communicate(timeout=180)
    assert step.returncode != 0
    assert "Host node-b was lost about " in errors
    found = diagnose(recording_of(first))
    finding = found["findings"][0]
    assert finding["code"] == "host-lost"
    assert [(one["rank"], one["host"]) for one in finding["culprits"]] == [(1, "node-b")]
    assert finding["victims"] == [0]
    assert found["job"]["outcome"] == "failed"
    last = {rank["rank"]: rank["last_step"] for rank in found["ranks"]}
    assert last[0] - last[1] <= 500  # half a minute of steps, as promised


def run(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
