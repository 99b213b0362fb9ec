"""Properties that hold for any process table."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

import pytest
from mgpu_probes.outside import jobs
from mgpu_probes.outside.jobs import command_lines, launchers

from tests.support.process_tables import TORCH, ProcTable, by_hand, elastic

COMMANDS = (
    ["bash"],
    ["bash", "-c", "python train.py"],
    ["python", "train.py"],
    ["python", "-u", "train.py"],
    ["python", "-m", "torch.distributed.run", "--nproc-per-node", "2", "train.py"],
    ["python", "-c", "from multiprocessing.spawn import spawn_main; spawn_main(tracker_fd=5)"],
    ["python", "-c", "from multiprocessing.resource_tracker import main;main(3)"],
    ["python", "-c", "from multiprocessing.forkserver import main; main(3, 5, ['train'])"],
    ["python", "-m", "ipykernel_launcher"],
    ["mpirun", "-np", "2", "python", "train.py"],
    ["slurmstepd: [7.0]"],
    ["mgpu-doctor", "run", "--", "torchrun", "train.py"],
    ["python", "/bin/accelerate", "launch", "train.py"],
    ["vim"],
)
NAMES = (None, None, None, "pt_data_worker")
THREADS: tuple[list[str], ...] = ([], [], ["pt_gloo_runloop"], ["pt_tcpstore_uv"])


def forest(folder: Path, seed: int) -> ProcTable:
    """Forty processes, each below an earlier one."""
    chance = random.Random(seed)
    table = ProcTable(folder)
    table.add(1, 0, "init", {})
    for pid in range(2, 42):
        seats: tuple[dict[str, object] | None, ...] = (
            {},
            {},
            None,
            elastic(chance.randrange(3), 3, port=chance.choice((29500, 29501))),
            by_hand(chance.randrange(2), 2),
            {"SLURM_PROCID": chance.randrange(2), "SLURM_STEP_ID": 0, "SLURM_NTASKS": 2},
            {"LOCAL_RANK": 1, "WORLD_SIZE": 2, "NODE_RANK": 0, "MASTER_ADDR": "127.0.0.1"},
            {"TF_CONFIG": '{"cluster": {"worker": ["a:1"]}, "task": {"type": "ps", "index": 0}}'},
        )
        table.add(
            pid,
            chance.randrange(max(1, pid - 8), pid),
            chance.choice(COMMANDS),
            chance.choice(seats),
            state=chance.choice("SSSSRTDZ"),
            name=chance.choice(NAMES),
            maps=chance.choice(([], [TORCH])),
            threads=chance.choice(THREADS),
            files=chance.choice(([], ["/dev/nvidia0"])),
            cpu_seconds=chance.choice((1, 9000)),
        )
    return table


@pytest.mark.parametrize("seed", range(12))
def test_no_process_is_in_two_jobs_and_each_leads_to_its_own(seed: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        table = forest(Path(folder), seed)
        found = jobs.find_all(table.proc)
        everyone = [process.pid for job in found for process in job.processes]
        assert len(everyone) == len(set(everyone))
        for job in found:
            there = {rank.rank for rank in job.ranks}
            assert not there.intersection(job.missing)
            assert job.launcher_pid is None or job.launcher_pid in set(everyone)
            for process in job.processes[::8]:
                again = jobs.find(process.pid, table.proc)
                assert again is not None
                assert process.pid in {process.pid for process in again.processes}


@pytest.mark.parametrize(
    ("command", "count"),
    [
        ("torchrun --nproc-per-node=4 train.py --nproc-per-node 9", 4),
        ("torchrun --nproc_per_node gpu train.py", None),
        ("torchrun --nnodes 1 --nproc-per-node 8 -m train", 8),
        ("torchrun --nnodes=1:4 --nproc-per-node 8 train.py", None),
        ("mpirun -np 2 python train.py", 2),
        ("mpirun -np 4 -H a,b python train.py", None),
        ("python /bin/accelerate launch --num_processes 2 train.py", 2),
        ("horovodrun -np 3 python train.py", 3),
        ("python train.py -np 3", None),
        ("torchrun", None),
    ],
)
def test_how_many_ranks_a_launcher_starts_here(command: str, count: int | None) -> None:
    assert launchers.count_ranks(tuple(command.split())) == count


@pytest.mark.parametrize(
    ("command", "program"),
    [
        ("python -u -X dev train.py --lr 1", ("train.py", ("--lr", "1"))),
        ("/usr/bin/python3.11 -Wignore -m pkg.train a", ("pkg.train", ("a",))),
        ("python", ("", ())),
        ("python -m", ("", ())),
        ("./train --x", ("./train", ("--x",))),
    ],
)
def test_what_a_command_runs(command: str, program: tuple[str, tuple[str, ...]]) -> None:
    assert command_lines.parse_program(tuple(command.split())) == program
