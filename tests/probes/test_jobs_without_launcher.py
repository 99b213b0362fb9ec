"""Jobs without a known launcher: by hand, by multiprocessing, single processes, other users'."""

from __future__ import annotations

from pathlib import Path

import pytest
from mgpu_probes.outside import jobs

from tests.support.process_tables import TORCH, ProcTable, by_hand, elastic

_SPAWNED = "from multiprocessing.spawn import spawn_main; spawn_main(tracker_fd=4, pipe_handle={})"
SPAWN = _SPAWNED.format(6)  # of the first that is started
LATER = _SPAWNED.format(8)
GLOO = ["pt_gloo_runloop"]
STORE = ["pt_tcpstore_uv", "pt_gloo_runloop"]
GPU = ["/dev/nvidiactl", "/dev/nvidia0"]


@pytest.fixture
def table(tmp_path: Path) -> ProcTable:
    table = ProcTable(tmp_path)
    table.add(1, 0, "/sbin/init", {})
    for shell in (10, 11, 12):
        table.add(shell, 1, "-bash", {})
    return table


def numbered(job: jobs.RunningJob | None) -> list[tuple[int, int | None]]:
    assert job is not None
    return [(rank.pid, rank.rank) for rank in job.ranks]


def test_ranks_started_by_hand_in_several_shells_are_one_job(table: ProcTable) -> None:
    for rank in (2, 0):
        table.add(200 + rank, 10 + rank, "python train.py", by_hand(rank, 3), maps=[TORCH])
    job = jobs.find(202, table.proc)
    assert numbered(job) == [(200, 0), (202, 2)]
    assert job is not None
    assert (job.launcher, job.world_size, job.missing) == (None, 3, (1,))
    assert jobs.find_all(table.proc) == (job,)


def test_workers_of_ray_train_are_ranks_and_only_the_first_tells_its_number(
    table: ProcTable,
) -> None:
    table.add(100, 10, "python train.py", {}, maps=[TORCH])
    table.add(101, 100, "/site-packages/ray/core/src/ray/raylet/raylet --node", {})
    table.add(102, 101, "ray::TrainController.run", {}, maps=[TORCH])
    for pid, threads in ((103, GLOO), (104, STORE), (105, [])):
        name = "ray::RayTrainWorker.execute"
        table.add(pid, 101, name, {}, maps=[TORCH], threads=threads)
    (job,) = jobs.find_all(table.proc)
    assert (job.launcher, job.launcher_pid) == ("ray", 101)
    assert sorted(numbered(job), key=str) == [(103, None), (104, 0)]
    (unread, *_) = job.unread
    assert (unread.pid, "Ray Train" in unread.reason) == (103, True)
    assert jobs.find(100, table.proc) == job


def test_a_driver_of_ray_leads_to_the_workers_of_its_job_on_a_cluster_that_it_did_not_start(
    table: ProcTable,
) -> None:
    logs = "/tmp/ray/session_2026-11-27_15-12-06_356428_9/logs"
    table.add(101, 1, "/site-packages/ray/core/src/ray/raylet/raylet --node", {})
    for number in (1, 2):
        driver = [f"{logs}/python-core-driver-0{number}000000ffffffffffff_{100 * number}.log"]
        table.add(100 * number, 10 + number, "python train.py", {}, maps=[TORCH], files=driver)
        for offset, threads in ((1, GLOO), (2, STORE)):
            pid = 100 * number + 10 + offset
            own = [f"{logs}/raylet.out", f"{logs}/worker-7f2fba2a-0{number}000000-{pid}.out"]
            name = "ray::RayTrainWorker.execute"
            table.add(pid, 101, name, {}, maps=[TORCH], threads=threads, files=own)
    first, second = jobs.find(100, table.proc), jobs.find(200, table.proc)
    assert sorted(numbered(first), key=str) == [(111, None), (112, 0)]
    assert sorted(numbered(second), key=str) == [(211, None), (212, 0)]
    assert jobs.find(211, table.proc) == second
    assert second is not None
    assert (second.launcher, second.launcher_pid) == ("ray", 101)
    assert {first, second} <= set(jobs.find_all(table.proc))


def test_a_homemade_launcher_is_reported_and_its_dead_children_are_ranks(table: ProcTable) -> None:
    table.add(100, 10, "python start.py", {})
    for rank in range(3):
        state = "Z" if rank == 1 else "S"
        table.add(200 + rank, 100, "python train.py", by_hand(rank, 3), state=state, maps=[TORCH])
    job = jobs.find(201, table.proc)
    assert numbered(job) == [(200, 0), (201, 1), (202, 2)]
    assert job is not None
    assert (job.launcher, job.launcher_pid, job.missing) == (None, 100, ())
    assert [process.role for process in job.processes] == ["launcher", "rank", "rank", "rank"]
    assert jobs.find(100, table.proc) == job


def test_ranks_of_one_program_that_meet_at_a_file_are_one_job(table: ProcTable) -> None:
    told = {"WORLD_SIZE": "3", "LOCAL_WORLD_SIZE": "3"}
    table.add(100, 10, "python start.py", {})
    for rank in range(3):
        table.add(200 + rank, 100, "python train.py", {**told, "RANK": str(rank)}, maps=[TORCH])
    job = jobs.find(100, table.proc)
    assert numbered(job) == [(200, 0), (201, 1), (202, 2)]
    assert job is not None
    assert (job.launcher_pid, job.missing) == (100, ())
    assert jobs.find_all(table.proc) == (job,)
    for rank in range(3):  # and once more
        table.add(300 + rank, 100, "python train.py", {**told, "RANK": str(rank)}, maps=[TORCH])
    first, second = jobs.find_all(table.proc)
    assert numbered(first) == [(200, 0), (201, 1), (202, 2)]
    assert numbered(second) == [(300, 0), (301, 1), (302, 2)]
    table.add(400, 11, "python train.py", {**told, "RANK": "1"}, maps=[TORCH])
    assert numbered(jobs.find(400, table.proc)) == [(400, 1)]


def test_a_program_that_starts_two_jobs_is_the_launcher_of_none(table: ProcTable) -> None:
    table.add(100, 10, "python sweep.py", {})
    for number in range(2):
        for rank in range(2):
            seat = {**by_hand(rank, 2), "MASTER_PORT": 29500 + number}
            table.add(200 + 10 * number + rank, 100, "python train.py", seat, maps=[TORCH])
    first, second = jobs.find_below(100, table.proc)
    assert (numbered(first), numbered(second)) == ([(200, 0), (201, 1)], [(210, 0), (211, 1)])
    assert first.launcher_pid is None


def test_a_rank_that_calls_itself_otherwise_is_known_by_its_file(table: ProcTable) -> None:
    for rank in range(2):
        title, program = f"llm: rank {rank}", "/usr/bin/python3.11"
        table.add(200 + rank, 10, [title], by_hand(rank, 2), maps=[TORCH], program=program)
    assert numbered(jobs.find(201, table.proc)) == [(200, 0), (201, 1)]


def test_by_hand_on_several_hosts_nobody_is_called_missing(table: ProcTable) -> None:
    table.add(200, 10, "python train.py", by_hand(0, 4, "node7"), maps=[TORCH])
    job = jobs.find(200, table.proc)
    assert job is not None
    assert job.missing == ()
    (unread,) = job.unread
    assert "which are missing" in unread.reason


def test_one_address_on_the_loop_back_of_two_containers_is_two_jobs(table: ProcTable) -> None:
    for number, digit in enumerate("ab"):
        cgroup = f"0::/system.slice/docker-{digit * 64}.scope\n"
        for rank in range(2):
            table.add(
                200 + 10 * number + rank,
                10,
                "python train.py",
                by_hand(rank, 2),
                maps=[TORCH],
                cgroup=cgroup,
                inner_pid=7 + rank,
                network=f"net:[{number}]",
            )
    first, second = jobs.find_all(table.proc)
    assert numbered(first) == [(200, 0), (201, 1)]
    assert numbered(second) == [(210, 0), (211, 1)]
    assert {process.container for process in first.processes} == {"a" * 12}
    assert [process.inner_pid for process in first.processes] == [7, 8]


@pytest.mark.parametrize(
    ("cgroup", "container"),
    [
        ("12:memory:/docker/" + "5" * 64 + "\n0::/\n", "5" * 12),
        (
            "0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-" + "6" * 64 + ".scope\n",
            "6" * 12,
        ),
        ("0::/machine.slice/libpod-" + "7" * 64 + ".scope/container\n", "7" * 12),
        ("0::/lxc/training/init.scope\n", "training"),
        ("0::/user.slice/user-1000.slice/session-3.scope\n", None),
        ("0::/system.slice/docker.service\n", None),
        ("nonsense\n", None),
    ],
)
def test_containers_are_known_by_their_control_group(
    table: ProcTable, cgroup: str, container: str | None
) -> None:
    table.add(200, 10, "python train.py", by_hand(0, 1), cgroup=cgroup)
    job = jobs.find(200, table.proc)
    assert job is not None
    assert [process.container for process in job.processes] == [container]


def test_an_exported_rank_makes_no_rank_of_every_command(table: ProcTable) -> None:
    exported = by_hand(0, 1)
    table.add(20, 10, ["bash"], exported)
    table.add(21, 20, "vim train.py", exported)
    table.add(22, 20, "python -m jupyter lab", exported)
    table.add(200, 20, "python train.py", exported, maps=[TORCH])
    (job,) = jobs.find_all(table.proc)
    assert numbered(job) == [(200, 0)]
    assert {process.pid for process in job.processes} == {200}


def test_children_of_multiprocessing_are_ranks_in_their_order(table: ProcTable) -> None:
    table.add(100, 10, "python train.py", {}, maps=[TORCH])
    table.add(101, 100, ["python", "-c", "from multiprocessing.resource_tracker import main"], {})
    for rank in range(3):
        table.add(200 + rank, 100, ["python", "-c", SPAWN], {}, maps=[TORCH], threads=GLOO)
    table.add(300, 201, ["python", "-c", SPAWN], {}, name="pt_data_worker", maps=[TORCH])
    job = jobs.find(300, table.proc)
    assert numbered(job) == [(200, 0), (201, 1), (202, 2)]
    assert job is not None
    assert (job.launcher, job.launcher_pid) == ("mp.spawn", 100)
    assert {process.pid: process.role for process in job.processes} == {
        100: "launcher",
        101: "other",
        200: "rank",
        201: "rank",
        202: "rank",
        300: "loader",
    }
    assert "order" in job.unread[0].reason
    assert jobs.find_all(table.proc) == (job,)


@pytest.mark.parametrize("command", [["python", "-c", SPAWN], ["python", "train.py"]])
def test_a_dead_child_of_multiprocessing_keeps_its_number(
    table: ProcTable, command: list[str]
) -> None:
    table.add(100, 10, "python train.py", {}, maps=[TORCH])
    table.add(200, 100, command, {}, maps=[TORCH], threads=STORE)
    table.add(201, 100, command, {}, state="Z")
    table.add(202, 100, command, {}, maps=[TORCH], threads=GLOO)
    job = jobs.find(100, table.proc)
    assert numbered(job) == [(200, 0), (201, 1), (202, 2)]


def test_a_manager_or_logger_is_no_rank_and_shifts_no_number(table: ProcTable) -> None:
    table.add(100, 10, "python train.py", {}, maps=[TORCH])
    table.add(150, 100, ["python", "-c", SPAWN], {}, maps=[TORCH])
    for rank, threads in enumerate((STORE, GLOO)):
        table.add(200 + rank, 100, ["python", "-c", LATER], {}, maps=[TORCH], threads=threads)
    job = jobs.find(150, table.proc)
    assert numbered(job) == [(200, 0), (201, 1)]
    assert job is not None
    assert {process.pid: process.role for process in job.processes}[150] == "other"


@pytest.mark.parametrize("command", [["python", "-c", LATER], ["python", "train.py"]])
def test_where_rank_zero_may_be_gone_nobody_gets_a_number(
    table: ProcTable, command: list[str]
) -> None:
    table.add(100, 10, "python train.py", {}, maps=[TORCH])
    for rank in (1, 2):
        table.add(200 + rank, 100, command, {}, maps=[TORCH], threads=GLOO)
    job = jobs.find(201, table.proc)
    assert numbered(job) == [(201, None), (202, None)]
    assert job is not None
    assert job.unread[0].reason.endswith(
        "rank 0 cannot be distinguished from the others: its rank is unknown"
    )


def test_while_they_meet_rank_zero_is_the_one_with_the_store(table: ProcTable) -> None:
    table.add(100, 10, "python train.py", {}, maps=[TORCH])
    for pid, threads in ((150, []), (200, ["pt_tcpstore_uv"]), (201, []), (202, ["gloo_tcp_loop"])):
        table.add(pid, 100, ["python", "-c", SPAWN], {}, maps=[TORCH], threads=threads)
    (job,) = jobs.find_all(table.proc)
    assert numbered(job) == [(200, 0), (201, 1), (202, 2)]


def test_before_they_meet_a_manager_is_known_by_where_it_listens(table: ProcTable) -> None:
    table.add(100, 10, "python train.py", {}, maps=[TORCH])
    table.add(150, 100, ["python", "-c", SPAWN], {}, maps=[TORCH], files=["socket:[77]"])
    for rank in range(2):
        table.add(200 + rank, 100, ["python", "-c", SPAWN], {}, maps=[TORCH])
    (table.proc / "net").mkdir()
    path = "/tmp/pymp-x1/listener-y2"
    (table.proc / "net/unix").write_text(
        f"Num RefCount Protocol Flags Type St Inode Path\n0: 2 0 00010000 0001 01 77 {path}\n"
    )
    assert [pid for pid, _ in numbered(jobs.find(100, table.proc))] == [200, 201]


def test_children_of_a_fork_server_are_ranks(table: ProcTable) -> None:
    server = ["python", "-c", "from multiprocessing.forkserver import main; main(5, 6, ['train'])"]
    table.add(100, 10, "python train.py", {}, maps=[TORCH])
    table.add(101, 100, server, {})
    for rank, threads in enumerate((STORE, GLOO)):
        table.add(200 + rank, 101, server, {}, maps=[TORCH], threads=threads)
    job = jobs.find(201, table.proc)
    assert numbered(job) == [(200, 0), (201, 1)]


def test_with_other_hosts_the_order_tells_the_local_rank_alone(table: ProcTable) -> None:
    table.add(100, 10, "python train.py --node_rank 1", {}, maps=[TORCH])
    for rank in range(2):
        table.add(200 + rank, 100, ["python", "-c", SPAWN], {}, maps=[TORCH], threads=GLOO)
    job = jobs.find(100, table.proc)
    assert job is not None
    assert [(rank.rank, rank.local_rank) for rank in job.ranks] == [(None, 0), (None, 1)]
    assert {failure.pid for failure in job.unread} >= {200, 201}


def test_unnamed_workers_of_a_single_program_are_no_ranks(table: ProcTable) -> None:
    table.add(100, 10, "python train.py", {}, maps=[TORCH], files=GPU, cpu_seconds=500)
    for number in range(4):
        table.add(200 + number, 100, "python train.py", {}, maps=[TORCH], files=GPU)
    (job,) = jobs.find_all(table.proc)
    assert numbered(job) == [(100, 0)]
    assert [process.role for process in job.processes] == ["rank", *["loader"] * 4]
    assert jobs.find(203, table.proc) == job


def test_ranks_that_have_not_met_are_found_when_they_are_pointed_at(table: ProcTable) -> None:
    table.add(100, 10, "python train.py", {}, maps=[TORCH], cpu_seconds=2)
    for rank in range(2):
        table.add(200 + rank, 100, ["python", "-c", LATER], {}, maps=[TORCH], cpu_seconds=2)
    assert numbered(jobs.find(100, table.proc)) == [(200, None), (201, None)]
    assert jobs.find_all(table.proc) == ()


@pytest.mark.parametrize(
    ("files", "threads", "tcp", "apart"),
    [
        (["/dev/null"], [], None, True),
        (["socket:[5]"], [], "", True),
        (["socket:[5]"], [], "0: 0100007F:1F90 0100007F:A1B2 01 0:0 00:0 0 1000 0 5 1", False),
        (["socket:[5]"], [], None, False),
        (["/dev/null"], GLOO, None, False),
        ([], [], None, False),
    ],
)
def test_ranks_without_a_thread_or_a_socket_for_each_other_are_in_no_process_group(
    table: ProcTable, files: list[str], threads: list[str], tcp: str | None, apart: bool
) -> None:
    table.add(100, 10, "python train.py", {}, maps=[TORCH], cpu_seconds=2)
    table.add(200, 100, ["python", "-c", SPAWN], {}, maps=[TORCH], files=["/dev/null"])
    later = ["python", "-c", LATER]
    table.add(201, 100, later, {}, maps=[TORCH], cpu_seconds=2, files=files, threads=threads)
    if tcp is not None:
        (table.proc / "201/net").mkdir()
        (table.proc / "201/net/tcp").write_text(f"  sl local_address\n{tcp}\n")
    job = jobs.find(100, table.proc)
    assert job is not None
    assert job.apart is apart


def test_on_several_hosts_lightning_tells_the_local_rank_alone(table: ProcTable) -> None:
    table.add(100, 10, "python train.py", {}, maps=[TORCH])
    seat = {"LOCAL_RANK": 1, "NODE_RANK": 1, "WORLD_SIZE": 4, "MASTER_PORT": 4711}
    table.add(201, 100, "python /src/train.py", seat | {"MASTER_ADDR": "node0"}, maps=[TORCH])
    job = jobs.find(100, table.proc)
    assert job is not None
    assert [(rank.pid, rank.rank, rank.local_rank) for rank in job.ranks] == [
        (100, None, 0),
        (201, None, 1),
    ]
    assert job.missing == ()
    assert {failure.pid for failure in job.unread if failure.pid} == {100, 201}


def test_a_notebook_that_is_pointed_at_or_busy_is_a_job(table: ProcTable) -> None:
    kernel = "python -m ipykernel_launcher -f k.json"
    table.add(100, 10, kernel, {}, maps=[TORCH], files=GPU)
    table.add(101, 11, kernel, {}, maps=[TORCH], files=GPU, cpu_seconds=9000)
    assert numbered(jobs.find(100, table.proc)) == [(100, 0)]
    (busy,) = jobs.find_all(table.proc)
    assert numbered(busy) == [(101, 0)]


def test_a_notebook_forks_its_ranks(table: ProcTable) -> None:
    kernel = "python -m ipykernel_launcher -f k.json"
    table.add(100, 10, kernel, {}, maps=[TORCH])
    for rank, threads in enumerate((STORE, GLOO)):
        table.add(200 + rank, 100, kernel, {}, maps=[TORCH], threads=threads)
    (job,) = jobs.find_all(table.proc)
    assert numbered(job) == [(200, 0), (201, 1)]
    assert job.launcher_pid == 100


def test_lightning_starts_the_others_from_rank_zero(table: ProcTable) -> None:
    table.add(100, 10, "python train.py", {}, maps=[TORCH])
    for rank in (1, 2):
        seat = {
            "LOCAL_RANK": rank,
            "NODE_RANK": 0,
            "WORLD_SIZE": 3,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": 4711,
        }
        table.add(200 + rank, 100, "python /src/train.py", seat, maps=[TORCH])
    (job,) = jobs.find_all(table.proc)
    assert numbered(job) == [(100, 0), (201, 1), (202, 2)]
    assert (job.launcher, job.world_size, job.missing) == ("lightning", 3, ())


@pytest.mark.parametrize(
    ("command", "facts"),
    [
        ("python train.py", {"maps": [TORCH], "files": GPU}),
        ("python train.py --settings flask.yaml", {"maps": [TORCH], "files": GPU}),
        ("python train.py", {"maps": [TORCH], "cpu_seconds": 9000}),
    ],
)
def test_a_program_that_trains_alone_is_a_job_of_one_rank(
    table: ProcTable, command: str, facts: dict[str, list[str]]
) -> None:
    table.add(100, 10, command, {}, **facts)  # type: ignore[arg-type]  # keyword arguments of add
    (job,) = jobs.find_all(table.proc)
    assert numbered(job) == [(100, 0)]
    assert (job.launcher, job.world_size, job.missing, job.unread) == ("python", 1, (), ())


def test_a_busy_program_is_no_job_while_the_launcher_that_it_started_waits(
    table: ProcTable,
) -> None:
    table.add(100, 10, "python sweep.py", {}, maps=[TORCH], cpu_seconds=9000)
    table.add(101, 100, "python /venv/bin/torchrun --nnodes 2 train.py", {})
    (job,) = jobs.find_all(table.proc)
    assert (job.launcher, job.launcher_pid, job.ranks) == ("torchrun", 101, ())


def test_a_launcher_that_waits_beside_ranks_started_by_hand_is_another_job(
    table: ProcTable,
) -> None:
    table.add(100, 10, "python sweep.py", {})
    table.add(101, 100, "python train.py", by_hand(0, 1), maps=[TORCH])
    table.add(102, 100, "python /venv/bin/torchrun --nnodes 2 train.py", {})
    by_hand_job, waiting = jobs.find_all(table.proc)
    assert (numbered(by_hand_job), by_hand_job.launcher) == ([(101, 0)], None)
    assert (waiting.launcher_pid, waiting.ranks) == (102, ())


@pytest.mark.parametrize(
    ("command", "facts"),
    [
        ("python -m http.server", {}),
        ("python -m jupyter lab", {}),
        ("python -m ipykernel_launcher -f k.json", {"maps": [TORCH]}),
        ("python /venv/bin/uvicorn app:app", {"maps": [TORCH], "files": GPU}),
        ("python -m vllm.entrypoints.openai.api_server", {"maps": [TORCH], "files": GPU}),
        ("python serve.py", {"maps": [TORCH], "cpu_seconds": 100}),
        ("python serve.py", {"maps": [TORCH], "files": ["/dev/nvidiactl"]}),
        ("python monitor.py", {"files": GPU}),
        ("nvidia-smi dmon", {"files": GPU}),
    ],
)
def test_what_does_not_train_is_no_job(
    table: ProcTable, command: str, facts: dict[str, list[str]]
) -> None:
    table.add(100, 10, command, {}, **facts)  # type: ignore[arg-type]  # keyword arguments of add
    assert jobs.find_all(table.proc) == ()


def test_other_users_ranks_are_counted_and_the_remedy_is_reported(table: ProcTable) -> None:
    table.add(100, 10, "python /venv/bin/torchrun --nnodes=2 --nproc_per_node=2 train.py", None)
    for rank in range(2):
        table.add(200 + rank, 100, "python train.py", None, uid=4242)
    job = jobs.find(200, table.proc)
    assert numbered(job) == [(200, None), (201, None)]
    assert job is not None
    assert (job.missing, job.world_size) == ((), None)
    assert [failure.pid for failure in job.unread[:2]] == [200, 201]
    assert job.unread[0].remedy == "run mgpu-doctor as 4242, or as root"


def test_other_users_ranks_on_one_host_are_named_by_their_order(table: ProcTable) -> None:
    table.add(100, 10, "python /venv/bin/torchrun --nproc_per_node=2 train.py", None)
    for rank in range(2):
        table.add(200 + rank, 100, "python train.py", None, uid=4242)
    job = jobs.find(200, table.proc)
    assert numbered(job) == [(200, 0), (201, 1)]


def test_what_lies_in_the_environment_harms_nobody(table: ProcTable) -> None:
    for number, lie in enumerate(("-1", "9" * 30, "", "one", "٣", "2")):
        seat = {**elastic(0, 2), "RANK": lie}
        table.add(200 + number, 10, "python train.py", seat)
    table.add(300, 10, "python train.py", {"TF_CONFIG": "[" * 100_000})
    table.add(301, 10, "python train.py", {"TF_CONFIG": '{"cluster": 1, "task": []}'})
    assert jobs.find_all(table.proc) == ()


def test_processes_that_vanish_or_are_hidden_are_tolerated(table: ProcTable) -> None:
    (table.proc / "400").mkdir()
    (table.proc / "401").write_text("no folder")
    for rank in range(2):
        table.add(200 + rank, 10, "python train.py", by_hand(rank, 2))
    for name in ("status", "cgroup", "maps"):
        (table.proc / "201" / name).unlink()
    assert numbered(jobs.find(200, table.proc)) == [(200, 0), (201, 1)]
    assert jobs.find(400, table.proc) is None
    assert jobs.find_all(table.proc / "none") == ()


def test_why_a_pid_is_no_job_is_reported(table: ProcTable) -> None:
    assert "not part" in jobs.unseen(10, table.proc)
    assert "no process" in jobs.unseen(4_194_304 + 1, table.proc)
    assert "no process id" in jobs.unseen(1 << 70, table.proc)
    assert "no process id" in jobs.unseen(-1, table.proc)
    assert jobs.find(4_194_305, table.proc) is None
