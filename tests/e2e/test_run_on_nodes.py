"""`run` on each node of a real Slurm step: nodes that share a home, nodes with homes of their own,
several tasks per node, a hang, and a node that is lost. The nodes are those of `slurm_cluster`: one
machine, two names."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from mgpu_doctor.recording.box import read_box
from tests.support.impatient_doctor import IMPATIENT_DOCTOR
from tests.support.jobs import JOBS, alone, until
from tests.support.slurm_cluster import can_run_daemons, slurm_cluster

pytestmark = [pytest.mark.slow, pytest.mark.untimed, pytest.mark.xdist_group("slurm")]

NODES = ("node-a", "node-b")
ROOT = Path(__file__).parents[2]
SLOW = ("--fault", "forward", "--rank", "1", "--ms", "60")
RANK = "export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS"
SHARE = "export LOCAL_WORLD_SIZE=$((SLURM_NTASKS / SLURM_NNODES)) OMP_NUM_THREADS=1"
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


def start(
    cluster: Path,
    home: str,
    script: str,
    *options: str,
    run: Sequence[str] = (sys.executable, "-m", "mgpu_doctor", "run"),
    tasks: int = 1,
    kill: bool = False,
) -> subprocess.Popen[str]:
    """A step with `mgpu-doctor run` on each node. `home`: the doctor's home, in the shell of a
    node; `run`: the command, with options; `tasks`: on each node; `kill`: whether a failure
    ends all."""
    command = shlex.join((sys.executable, str(JOBS / script), *options))
    doctor = shlex.join((*run, "--"))
    place = f"export MGPU_DOCTOR_HOME={cluster}/{home}"
    line = f"cd {ROOT} && {RANK} && {SHARE} && {PLACE} && {place} && exec {doctor} {command}"
    count = ("--nodes=2", f"--ntasks={2 * tasks}", f"--ntasks-per-node={tasks}")
    step = (
        "srun",
        "--label",
        "--job-name=train",
        f"--kill-on-bad-exit={int(kill)}",
        *count,
        "sh",
        "-c",
        line,
    )
    return subprocess.Popen(step, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def recording_of(home: Path) -> Path:
    (recording,) = (home / "runs").iterdir()
    return recording


def lines_of_the_doctor(text: str, task: int) -> list[str]:
    return [line for line in text.splitlines() if line.startswith(f"{task}: mgpu-doctor: ")]


def folders(cluster: Path, home: str) -> list[Path]:
    """The homes of the nodes."""
    return [cluster / home.replace("$SLURMD_NODENAME", node) for node in NODES]


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
    step = start(cluster, SHARED, "plain_ddp.py", "--steps", "100", *SLOW)
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


def test_nodes_fetch_what_others_write_on_their_own_disks(cluster: Path) -> None:
    step = start(cluster, OWN, "plain_ddp.py", "--steps", "300", *SLOW)
    _, errors = step.communicate(timeout=240)
    assert step.returncode == 0, errors
    first, second = map(recording_of, folders(cluster, OWN))
    for recordings in ((first,), (second,), (first, second)):
        found = diagnose(*recordings)
        assert_names_the_slow_rank(found)
        if recordings != (second,):  # it waits for nobody, and may lack the end of the first
            assert [gap for gap in found["unexamined"] if "node" in gap["probe"]] == []
    assert errors.count("! Rank 1 is slowing down the other ranks") == 1
    (line,) = lines_of_the_doctor(errors, 1)
    assert f"the first node prints the diagnosis; the recording is {second}" in line


def test_tasks_that_share_nodes_are_one_job(cluster: Path) -> None:
    place = f"tasks/{OWN}"
    slow = ("--fault", "forward", "--rank", "3", "--ms", "120")
    step = start(cluster, place, "plain_ddp.py", "--steps", "200", *slow, tasks=2)
    _, errors = step.communicate(timeout=240)
    assert step.returncode == 0, errors
    named = [line for line in errors.splitlines() if "Rank 3 is slowing down the" in line]
    assert {line.partition(":")[0] for line in named} == {"0"}
    assert errors.count(" 4 ranks on 2 hosts;") == 1
    assert [len(lines_of_the_doctor(errors, task)) for task in (1, 2, 3)] == [0, 1, 0]
    recording = recording_of(folders(cluster, place)[0])
    found = diagnose(recording)
    assert found["job"]["outcome"] == "completed"
    assert [rank["host"] for rank in found["ranks"]] == ["node-a", "node-a", "node-b", "node-b"]
    first = found["findings"][0]
    assert first["code"] == "straggler-compute"
    assert [(one["rank"], one["host"]) for one in first["culprits"]] == [(3, "node-b")]
    for host in NODES:  # one task samples those of all
        lines = (recording / "hosts" / host / "host.jsonl").read_text().splitlines()
        sampled = {pid for line in lines for pid in json.loads(line).get("tasks", {})}
        assert {str(rank["pid"]) for rank in found["ranks"] if rank["host"] == host} <= sampled
    for part in ("node-a", "node-a/tasks/1", "node-b", "node-b/tasks/1"):
        assert "of 4 starts" in (recording / "hosts" / part / "console/stderr.log").read_text()
        assert json.loads((recording / "hosts" / part / "end.json").read_text())["exit_code"] == 0


@pytest.mark.parametrize("tasks", [1, 2])
def test_a_hang_is_diagnosed_from_what_each_node_kept_on_its_disk(
    cluster: Path, tasks: int
) -> None:
    """The rank that the others wait for is on the second node. If no rank waits there, its command
    does not end by itself: Slurm ends it after the first node has reported."""
    place = f"hang-{tasks}/{OWN}"
    culprit = 2 * tasks - 1
    lock = ("hangs.py", "lock", "--at-step", "40", "--rank", str(culprit))
    stop = (*IMPATIENT_DOCTOR, "run", "--on-hang", "stop")
    step = start(cluster, place, *lock, run=stop, tasks=tasks, kill=tasks == 1)
    _, errors = step.communicate(timeout=240)
    assert step.returncode != 0
    first = lines_of_the_doctor(errors, 0)
    assert any("the job has made no progress for" in line for line in first)
    recording = recording_of(folders(cluster, place)[0])
    found = diagnose(recording)
    finding = found["findings"][0]
    assert finding["code"] == "hang-rank-behind"
    assert [(one["rank"], one["host"]) for one in finding["culprits"]] == [(culprit, "node-b")]
    assert finding["victims"] == list(range(culprit))
    assert f"Rank {culprit}" in errors
    assert (recording / "hosts/node-b/looks.jsonl").exists()
    dumps = list(recording.glob("hosts/*/flight/*.json"))
    assert len(dumps) >= tasks


@pytest.mark.parametrize("home", [SHARED, OWN])
@pytest.mark.parametrize("lost", NODES)
def test_a_node_that_is_lost_is_named_from_its_last_copy(
    cluster: Path, lost: str, home: str
) -> None:
    """All of its processes are killed at once, its `run` and the agent too, and it starts no other
    one. The other node reports: the first one, or else the second."""
    place = f"lost-{lost}/{home}"
    step = start(cluster, place, "plain_ddp.py", "--steps", "100000", *SLOW)
    left = 1 - NODES.index(lost)
    home_left = folders(cluster, place)[left]
    pattern = f"runs/*/hosts/{lost}/boxes/*.box"
    until(lambda: len(list(home_left.glob(pattern))) == 1, 120)
    (box,) = home_left.glob(pattern)
    until(lambda: len(read_box(box).steps) > 100, 120)
    daemon = run("pgrep", "--exact", "--full", f"slurmd -D -N {lost}").strip()
    on_node = ("nsenter", f"--target={daemon}", "--pid", "--mount", "pkill")
    ours = ("--full", "plain_ddp|mgpu")
    # Stopped first, else `run` may see the rank's end and record it, as a new agent would.
    run(*on_node, "-STOP", *ours)
    run("kill", "-STOP", daemon)
    try:
        run(*on_node, "-KILL", *ours)
        _, errors = step.communicate(timeout=180)
    finally:
        run("kill", "-CONT", daemon)
    assert step.returncode != 0
    assert errors.count(f"Host {lost} was lost about ") == 1
    found = diagnose(recording_of(home_left))
    finding = found["findings"][0]
    assert finding["code"] == "host-lost"
    assert [(one["rank"], one["host"]) for one in finding["culprits"]] == [(1 - left, lost)]
    assert finding["victims"] == [left]
    assert found["job"]["outcome"] == "failed"
    last = {rank["rank"]: rank["last_step"] for rank in found["ranks"]}
    assert last[left] - last[1 - left] <= 500  # half a minute of steps, as promised


def run(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
