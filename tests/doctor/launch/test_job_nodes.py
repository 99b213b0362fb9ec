"""Which node of a job this is, by Slurm's variables and by launchers' options."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys

import pytest

from mgpu_doctor.launch.job_nodes import JobNodes, find_job_nodes

STEP = {
    "SLURM_CLUSTER_NAME": "c",
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_ID": "2",
    "SLURM_STEP_NUM_NODES": "4",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_PROCID": "3",
}
TORCHRUN = "torchrun --nnodes 2 --node-rank 1 --master-addr node1 --master-port 29500 train.py"


def find(command: str, **environment: str) -> JobNodes | None:
    return find_job_nodes(environment, shlex.split(command))


def test_a_task_per_node_of_a_slurm_step() -> None:
    found = find("python train.py", **STEP, MASTER_ADDR="node1")
    assert found == JobNodes("slurm c 4711.2 0 train", 4, 4, False, 3, "4711", tasks=4)
    assert find(TORCHRUN, **STEP) == found
    requeued = find("python train.py", **STEP, MASTER_ADDR="node1", SLURM_RESTART_COUNT="1")
    assert requeued is not None
    assert requeued.key != found.key


def test_tasks_that_share_a_node_are_one_job() -> None:
    task = {**STEP, "SLURM_STEP_NUM_TASKS": "8", "SLURM_NODEID": "1", "MASTER_ADDR": "node1"}
    second = find("python train.py", **task, SLURM_LOCALID="0")
    assert second == JobNodes("slurm c 4711.2 0 train", 4, 4, False, 1, "4711", 0, 8)
    assert second.second
    other = find("python train.py", **task, SLURM_LOCALID="1")
    assert other is not None
    assert (other.key, other.task, other.first, other.second) == (second.key, 1, False, False)
    assert find("python train.py", **task) is None  # which task this is, is unknown


def test_tasks_on_one_node_may_meet_at_its_loopback() -> None:
    alone = {**STEP, "SLURM_STEP_NUM_NODES": "1", "SLURM_NODEID": "0", "SLURM_LOCALID": "3"}
    found = find("python train.py", **alone, MASTER_ADDR="127.0.0.1")
    assert found == JobNodes("slurm c 4711.2 0 train", 1, 1, False, 0, "4711", 3, 4)
    assert find("python train.py --seed 3", **alone) is None
    assert find("python train.py", **{**alone, "SLURM_STEP_NUM_TASKS": "1"}) is None


@pytest.mark.parametrize(
    ("command", "address"),
    [
        ("python train.py --seed 3", ""),
        ("python train.py", "127.0.0.1"),
        ("torchrun --standalone --nproc-per-node 8 train.py", "node1"),
        ("torchrun --nproc-per-node 8 train.py --nnodes 4", "node1"),
        ("accelerate launch --num_processes 8 train.py", "node1"),
    ],
)
def test_tasks_of_a_step_that_are_jobs_of_their_own(command: str, address: str) -> None:
    assert find(command, **STEP, MASTER_ADDR=address) is None


def test_torchrun_by_its_options_or_variables() -> None:
    assert find(TORCHRUN) == JobNodes("torchrun node1 29500 ", 2, 2, False, 1, tasks=2)
    assert find("torchrun --nnodes=2 --node_rank=0 --master_addr=node1 t.py --node-rank 5") == (
        JobNodes("torchrun node1  ", 2, 2, True, 0, tasks=2)
    )


def test_the_first_node_of_a_rendezvous_is_the_one_that_serves_it() -> None:
    given = {"PET_NNODES": "1:4", "PET_RDZV_BACKEND": "c10d", "PET_RDZV_ID": "a"}
    for place, first in ((os.uname().nodename, True), ("192.0.2.7", False), ("no.invalid", None)):
        found = find("torchrun train.py", **given, PET_RDZV_ENDPOINT=f"{place}:29400")
        number = 0 if first else None
        assert found == JobNodes(f"torchrun {place}:29400  a", 4, 1, first, number, tasks=4)
    elsewhere = {**given, "PET_RDZV_BACKEND": "etcd-v2", "PET_RDZV_ENDPOINT": "etcd:2379"}
    found = find("torchrun train.py", **elsewhere)
    assert found is not None
    assert found.first is None


def test_accelerate() -> None:
    line = "accelerate launch --num_machines 2 --machine_rank 1 --main_process_ip node1 train.py"
    assert find(line) == JobNodes("accelerate node1  ", 2, 2, False, 1, tasks=2)


@pytest.mark.parametrize(
    "command",
    [
        "torchrun --standalone --nproc-per-node 4 train.py",
        "torchrun --nnodes 1 --master-addr node1 train.py",
        "torchrun --nnodes 2 --node-rank 0 --master-addr localhost train.py",
        "python train.py --nnodes 2 --node-rank 1 --master-addr node1",
        "torchrun --nnodes two --master-addr node1 train.py",
    ],
)
def test_a_job_of_one_node(command: str) -> None:
    assert find(command) is None


def test_hosts_of_a_job_of_one_node_are_refused() -> None:
    command = (sys.executable, "-m", "mgpu_doctor", "run", "--hosts", "a,b", "--", "true")
    alone = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=alone)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "--hosts needs a job that is started on each of its nodes" in line
