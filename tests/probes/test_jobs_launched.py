"""Jobs started by a launcher, found in a pretend process table."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from mgpu_probes.outside import jobs

from tests.support.process_tables import TENSORFLOW, TORCH, ProcTable, elastic

TORCHRUN = "python -m torch.distributed.run --standalone --nproc-per-node 2 train.py"


@pytest.fixture
def table(tmp_path: Path) -> ProcTable:
    table = ProcTable(tmp_path)
    table.add(1, 0, "/sbin/init", {})
    table.add(10, 1, "-bash", {})
    return table


def torchrun(table: ProcTable, ranks: int = 2) -> None:
    table.add(100, 10, f"/venv/bin/python /venv/bin/torchrun --nproc_per_node={ranks} train.py", {})
    for rank in range(ranks):
        table.add(200 + rank, 100, "python -u train.py", elastic(rank, ranks), maps=[TORCH])


def roles(job: jobs.RunningJob | None) -> dict[int, tuple[str, int | None]]:
    assert job is not None
    return {process.pid: (process.role, process.rank) for process in job.processes}


@pytest.mark.parametrize("pid", [10, 100, 200, 201, 300])
def test_any_process_leads_to_the_whole_job(table: ProcTable, pid: int) -> None:
    torchrun(table)
    table.add(300, 201, "python -u train.py", elastic(1, 2), name="pt_data_worker", maps=[TORCH])
    job = jobs.find(pid, table.proc)
    assert roles(job) == {
        100: ("launcher", None),
        200: ("rank", 0),
        201: ("rank", 1),
        300: ("loader", 1),
    }
    assert job is not None
    assert (job.launcher, job.launcher_pid, job.world_size) == ("torchrun", 100, 2)
    assert (job.missing, job.unread) == ((), ())
    assert jobs.find_all(table.proc) == (job,)


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("python -m torch.distributed.run --nproc-per-node 2 train.py", "torchrun"),
        ("python3.11 -u -m torch.distributed.launch --nproc_per_node=2 train.py", "torchrun"),
        ("python -X dev /venv/bin/accelerate launch --num_processes 2 train.py", "accelerate"),
        ("/venv/bin/python3 /venv/bin/accelerate-launch train.py", "accelerate"),
        ("python -u -m deepspeed.launcher.launch --world_info=e30= train.py", "deepspeed"),
        ("python /venv/bin/horovodrun -np 2 python train.py", "horovodrun"),
        ("/usr/bin/mpirun -np 2 python train.py", "mpirun"),
        ("/opt/intel/mpiexec.hydra -n 2 python train.py", "mpirun"),
        ("/usr/bin/hydra_pmi_proxy --rmk user", "mpirun"),
        (["slurmstepd: [123.0]"], "srun"),
    ],
)
def test_launchers_are_known_by_their_commands(
    table: ProcTable, command: str | list[str], name: str
) -> None:
    table.add(100, 10, command, {})
    for rank in range(2):
        table.add(200 + rank, 100, "python train.py", elastic(rank, 2))
    job = jobs.find(201, table.proc)
    assert job is not None
    assert (job.launcher, job.launcher_pid, job.world_size) == (name, 100, 2)
    assert [rank.rank for rank in job.ranks] == [0, 1]


@pytest.mark.parametrize(
    "environment",
    [
        lambda rank: {
            "OMPI_COMM_WORLD_RANK": rank,
            "OMPI_COMM_WORLD_SIZE": 2,
            "OMPI_COMM_WORLD_LOCAL_RANK": rank,
            "OMPI_COMM_WORLD_LOCAL_SIZE": 2,
        },
        lambda rank: {"PMI_RANK": rank, "PMI_SIZE": 2, "MPI_LOCALNRANKS": 2},
        lambda rank: {
            "SLURM_PROCID": rank,
            "SLURM_NTASKS": 2,
            "SLURM_NNODES": 1,
            "SLURM_JOB_ID": 7,
            "SLURM_STEP_ID": 0,
        },
        lambda rank: {"HOROVOD_RANK": rank, "HOROVOD_SIZE": 2, "HOROVOD_LOCAL_SIZE": 2},
    ],
    ids=["openmpi", "hydra", "slurm", "horovod"],
)
def test_each_launcher_tells_the_rank_in_its_own_words(
    table: ProcTable, environment: Callable[[int], dict[str, object]]
) -> None:
    table.add(100, 10, "slurmstepd: [7.0]", {})
    table.add(200, 100, "python train.py", environment(0))
    table.add(201, 100, ["bash", "-c", "python train.py; true"], environment(1))
    table.add(202, 201, "python train.py", environment(1), maps=[TORCH])
    job = jobs.find(202, table.proc)
    assert roles(job) == {
        100: ("launcher", None),
        201: ("other", None),
        200: ("rank", 0),
        202: ("rank", 1),
    }
    assert job is not None
    assert job.missing == ()


def test_a_rank_that_is_not_there_is_missing(table: ProcTable) -> None:
    table.add(100, 10, TORCHRUN, {})
    table.add(201, 100, "python train.py", elastic(1, 3))
    job = jobs.find(100, table.proc)
    assert job is not None
    assert job.missing == (0, 2)


def test_ranks_of_other_hosts_are_not_missing(table: ProcTable) -> None:
    table.add(100, 10, "torchrun --nnodes=2 --nproc-per-node=2 train.py", {})
    here = {"WORLD_SIZE": 4, "LOCAL_WORLD_SIZE": 2, "MASTER_ADDR": "node1", "MASTER_PORT": 29500}
    table.add(200, 100, "python train.py", {"RANK": 2, "LOCAL_RANK": 0, **here})
    job = jobs.find(100, table.proc)
    assert job is not None
    assert (job.world_size, job.missing) == (4, (3,))


def test_the_states_of_dead_stopped_and_stuck_ranks_are_reported(table: ProcTable) -> None:
    torchrun(table, 1)
    for rank, state in enumerate("TtDZ", start=1):
        table.add(200 + rank, 100, "python train.py", elastic(rank, 5), state=state)
    job = jobs.find(100, table.proc)
    assert job is not None
    assert [rank.state for rank in job.ranks] == ["S", "T", "t", "D", "Z"]


def test_a_zombie_gets_its_rank_from_the_order_of_start(table: ProcTable) -> None:
    table.add(100, 10, TORCHRUN, {})
    table.add(200, 100, "python train.py", elastic(0, 3), maps=[TORCH])
    table.add(203, 100, "python train.py", elastic(1, 3), state="Z")
    table.add(202, 100, "python train.py", elastic(2, 3), maps=[TORCH])
    job = jobs.find(203, table.proc)
    assert roles(job) == {
        100: ("launcher", None),
        200: ("rank", 0),
        203: ("rank", 1),
        202: ("rank", 2),
    }
    assert job is not None
    assert job.missing == ()


def test_two_dead_of_three_with_one_not_there_get_no_rank(table: ProcTable) -> None:
    table.add(100, 10, TORCHRUN, {})
    table.add(200, 100, "python train.py", elastic(1, 4), maps=[TORCH])
    table.add(201, 100, "python train.py", elastic(2, 4), state="Z")
    job = jobs.find(100, table.proc)
    assert job is not None
    assert [(rank.pid, rank.rank) for rank in job.ranks] == [(200, 1), (201, None)]
    assert job.missing == ()


def test_a_launcher_all_of_whose_ranks_are_dead_is_a_job(table: ProcTable) -> None:
    table.add(100, 10, TORCHRUN, {}, state="T")
    table.add(200, 100, "python train.py", {}, state="Z")
    table.add(201, 100, "python train.py", {}, state="Z")
    job = jobs.find(100, table.proc)
    assert roles(job) == {100: ("launcher", None), 200: ("rank", 0), 201: ("rank", 1)}


def test_the_single_process_of_accelerate_is_a_rank(table: ProcTable) -> None:
    table.add(100, 10, "python /venv/bin/accelerate launch --num_processes 1 train.py", {})
    table.add(200, 100, "python train.py", {"ACCELERATE_MIXED_PRECISION": "no"}, maps=[TORCH])
    job = jobs.find(200, table.proc)
    assert roles(job) == {100: ("launcher", None), 200: ("rank", 0)}
    assert job is not None
    assert (job.launcher, job.world_size, job.missing) == ("accelerate", 1, ())


def test_a_launcher_that_waits_for_other_hosts_is_a_job(table: ProcTable) -> None:
    table.add(100, 10, "torchrun --nnodes=2 --nproc-per-node=2 train.py", {})
    (job,) = jobs.find_all(table.proc)
    assert roles(job) == {100: ("launcher", None)}
    assert (job.launcher, job.missing) == ("torchrun", ())


def test_of_several_launchers_the_one_that_people_called_is_named(table: ProcTable) -> None:
    table.add(100, 10, "mpiexec.hydra -n 1 python train.py", {})
    table.add(101, 100, "hydra_pmi_proxy --rmk user", {})
    hydra = {"PMI_RANK": 0, "PMI_SIZE": 1, "MPI_LOCALNRANKS": 1, "MPI_LOCALRANKID": 0}
    table.add(200, 101, "python train.py", hydra, maps=[TORCH])
    job = jobs.find(200, table.proc)
    assert job is not None
    assert (job.launcher, job.launcher_pid, job.missing) == ("mpirun", 100, ())


def test_an_mpi_program_that_is_no_training_is_no_job(table: ProcTable) -> None:
    table.add(100, 10, "mpirun -np 1 ./simulation", {})
    seat = {"OMPI_COMM_WORLD_RANK": 0, "OMPI_COMM_WORLD_SIZE": 1}
    table.add(200, 100, "./simulation", seat)
    assert jobs.find_all(table.proc) == ()
    assert roles(jobs.find(100, table.proc)) == {100: ("launcher", None), 200: ("rank", 0)}


def test_tests_that_a_launcher_starts_are_ranks(table: ProcTable) -> None:
    table.add(100, 10, TORCHRUN, {})
    for rank in range(2):
        table.add(200 + rank, 100, "python -m pytest tests", elastic(rank, 2), maps=[TORCH])
    (job,) = jobs.find_all(table.proc)
    assert [rank.rank for rank in job.ranks] == [0, 1]


def test_what_a_rank_starts_is_distinguished_from_it(table: ProcTable) -> None:
    torchrun(table, 1)
    inherited = elastic(0, 1)
    spawn = "from multiprocessing.spawn import spawn_main; spawn_main(tracker_fd=5, pipe_handle=7)"
    tracker = "from multiprocessing.resource_tracker import main;main(5)"
    table.add(301, 200, ["python", "-c", tracker], inherited)
    table.add(302, 200, ["python", "-c", spawn, "--multiprocessing-fork"], inherited, maps=[TORCH])
    table.add(303, 200, ["sh", "-c", "git rev-parse HEAD"], inherited)
    table.add(304, 303, "git rev-parse HEAD", inherited)
    table.add(305, 200, "python -u train.py", inherited, maps=[TORCH])
    found = roles(jobs.find(200, table.proc))
    assert found[200] == ("rank", 0)
    assert {pid: role for pid, (role, _) in found.items() if pid > 300} == {
        301: "other",
        302: "loader",
        303: "other",
        304: "other",
        305: "loader",
    }


def test_with_a_worker_of_its_name_what_else_is_forked_is_no_loader(table: ProcTable) -> None:
    torchrun(table, 1)
    table.add(301, 200, "python -u train.py", elastic(0, 1), name="pt_data_worker", maps=[TORCH])
    table.add(302, 200, "python -u train.py", elastic(0, 1), maps=[TORCH])
    found = roles(jobs.find(200, table.proc))
    assert (found[301][0], found[302][0]) == ("loader", "other")


def test_two_launchers_with_one_meeting_place_are_one_job_of_two_nodes(table: ProcTable) -> None:
    for node in range(2):
        table.add(100 + node, 10, f"torchrun --nnodes 2 --node_rank {node} train.py", {})
        seat = {**elastic(node, 2), "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1}
        table.add(200 + node, 100 + node, "python train.py", seat, maps=[TORCH])
    (job,) = jobs.find_all(table.proc)
    assert [rank.rank for rank in job.ranks] == [0, 1]
    assert job.missing == ()
    assert {process.pid for process in job.processes if process.role == "launcher"} == {100, 101}


def test_two_jobs_are_two_even_at_one_port(table: ProcTable) -> None:
    for number in range(2):
        table.add(100 + number, 10, TORCHRUN, {})
        for rank in range(2):
            pid = 200 + 10 * number + rank
            table.add(pid, 100 + number, "python train.py", elastic(rank, 2), maps=[TORCH])
    first, second = jobs.find_all(table.proc)
    assert [rank.pid for rank in first.ranks] == [200, 201]
    assert [rank.pid for rank in second.ranks] == [210, 211]
    assert len(jobs.find_below(10, table.proc)) == 2
    findings = jobs.find(211, table.proc)
    assert findings == second


def test_a_job_that_a_rank_starts_is_another_job(table: ProcTable) -> None:
    torchrun(table, 1)
    table.add(300, 200, "torchrun --nproc-per-node 1 evaluate.py", elastic(0, 1))
    seat = elastic(0, 1, port=31000, run="run2")
    table.add(301, 300, "python evaluate.py", seat, maps=[TORCH], threads=["pt_gloo_runloop"])
    table.add(302, 200, "python -u train.py", elastic(0, 1), name="pt_data_worker", maps=[TORCH])
    outer, inner = jobs.find_all(table.proc)
    assert set(roles(outer)) == {100, 200, 302}
    assert set(roles(inner)) == {300, 301}


def test_srun_leads_to_its_tasks_though_they_are_not_its_children(table: ProcTable) -> None:
    def task(number: int) -> dict[str, object]:
        size = {"SLURM_NTASKS": 2, "SLURM_NNODES": 1}
        return {"SLURM_PROCID": number, "SLURM_JOB_ID": 7, "SLURM_STEP_ID": 1, **size}

    table.add(50, 1, ["slurmstepd: [7.0]"], {})
    table.add(51, 50, ["bash"], {**task(0), "SLURM_STEP_ID": 0, "SLURM_NTASKS": 1})
    table.add(90, 51, "mgpu-doctor run -- srun -n 2 python train.py", {"SLURM_JOB_ID": 7})
    table.add(91, 90, "srun -n 2 python train.py", {"SLURM_JOB_ID": 7})
    table.add(100, 1, ["slurmstepd: [7.1]"], {})
    for rank in range(2):
        table.add(200 + rank, 100, "python train.py", task(rank), maps=[TORCH])
    for pid in (90, 91, 100, 201):
        job = jobs.find(pid, table.proc)
        assert job is not None
        assert [(rank.pid, rank.rank) for rank in job.ranks] == [(200, 0), (201, 1)]
        assert (job.launcher, job.launcher_pid) == ("srun", 100)


def test_a_script_in_slurm_that_starts_the_ranks_is_none(table: ProcTable) -> None:
    slurm = {"SLURM_PROCID": 0, "SLURM_NTASKS": 1, "SLURM_NNODES": 1, "SLURM_STEP_ID": 0}
    table.add(50, 10, ["slurmstepd: [7.0]"], {})
    table.add(51, 50, "python submit.py", slurm)
    table.add(100, 51, TORCHRUN, slurm)
    for rank in range(2):
        seat = {**slurm, **elastic(rank, 2)}
        table.add(200 + rank, 100, "python train.py", seat, maps=[TORCH])
    (job,) = jobs.find_all(table.proc)
    assert [rank.pid for rank in job.ranks] == [200, 201]
    assert (job.launcher, job.launcher_pid) == ("torchrun", 100)


def test_other_programs_in_an_allocation_are_no_ranks(table: ProcTable) -> None:
    slurm = {"SLURM_PROCID": 0, "SLURM_NTASKS": 1, "SLURM_NNODES": 1, "SLURM_STEP_ID": 0}
    table.add(50, 10, ["slurmstepd: [7.0]"], {})
    table.add(51, 50, "-bash", slurm)
    table.add(52, 51, "python -m http.server", slurm)
    table.add(53, 51, "vim train.py", slurm)
    found = [rank.pid for job in jobs.find_all(table.proc) for rank in job.ranks]
    assert found == []


def test_tensorflow_tasks_of_one_cluster_are_one_job(table: ProcTable) -> None:
    cluster = {"chief": ["localhost:1"], "worker": ["localhost:2"], "ps": ["localhost:3"]}
    for number, kind in enumerate(("worker", "chief", "ps")):
        task = {"type": kind, "index": 0}
        config = {"TF_CONFIG": json.dumps({"cluster": cluster, "task": task})}
        table.add(200 + number, 10, "python train.py", config, maps=[TENSORFLOW])
    (job,) = jobs.find_all(table.proc)
    assert job.launcher == "TF_CONFIG"
    assert [(rank.pid, rank.rank) for rank in job.ranks] == [(201, 0), (200, 1)]
    assert roles(job)[202] == ("other", None)
    assert (job.world_size, job.missing) == (2, ())
