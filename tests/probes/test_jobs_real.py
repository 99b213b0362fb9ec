"""Jobs of real processes, as small as possible: without framework and collectives."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mgpu_probes.outside import jobs, processes

from tests.support.jobs import until
from tests.support.other_user import as_nobody
from tests.support.process_tables import by_hand

LAUNCHER = """\
import os, subprocess, sys
world = int(sys.argv[1])
ranks = []
for rank in range(world):
    facts = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world,
             "MASTER_ADDR": "localhost", "MASTER_PORT": os.getpid(), "TORCHELASTIC_RUN_ID": "t"}
    environment = os.environ | {key: str(value) for key, value in facts.items()}
    command = [sys.executable, "-c", "print(flush=True); input()"]
    rank = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    rank.stdout.readline()
    ranks.append(rank)
print(*(rank.pid for rank in ranks), flush=True)
input()
for rank in ranks:
    rank.communicate(b"\\n")
"""
RANK = "print(flush=True); input()"


def rank_environment(rank: int, world: int) -> dict[str, str]:
    """The environment of a rank of this very test: others may run it beside us."""
    seat = by_hand(rank, world, port=os.getpid())
    return os.environ | {key: str(word) for key, word in seat.items()}


@contextmanager
def launched(folder: Path, world: int) -> Iterator[tuple[int, list[int]]]:
    """A launcher's pid and those of its ranks, all waiting."""
    script = folder / "torchrun"
    script.write_text(LAUNCHER)
    command = [sys.executable, str(script), str(world)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as launcher:
        assert launcher.stdout is not None
        ranks = [int(pid) for pid in launcher.stdout.readline().split()]
        try:
            yield launcher.pid, ranks
        finally:
            for pid in ranks:
                os.kill(pid, signal.SIGCONT)
            launcher.communicate("\n")


def test_a_job_is_found_from_each_of_its_processes(tmp_path: Path) -> None:
    with launched(tmp_path, 3) as (launcher, ranks):
        for pid in (launcher, *ranks):
            job = jobs.find(pid)
            assert job is not None
            assert (job.launcher, job.launcher_pid, job.world_size) == ("torchrun", launcher, 3)
            assert [(rank.pid, rank.rank) for rank in job.ranks] == [
                *zip(ranks, (0, 1, 2), strict=True)
            ]
            assert (job.missing, job.unread) == ((), ())
            first = job.ranks[0]
            assert first.uid == os.geteuid()
            assert first.start_ticks == processes.find_start_ticks(ranks[0])
            assert first.command[0] == sys.executable
        everywhere = [rank.pid for found in jobs.find_all() for rank in found.ranks]
        assert everywhere.count(ranks[1]) == 1


def test_a_stopped_and_a_dead_rank_are_reported_at_once(tmp_path: Path) -> None:
    with launched(tmp_path, 3) as (launcher, ranks):
        os.kill(ranks[0], signal.SIGSTOP)
        os.kill(ranks[1], signal.SIGKILL)

        def states() -> dict[int | None, str]:
            job = jobs.find(launcher)
            assert job is not None
            return {rank.rank: rank.state for rank in job.ranks}

        until(lambda: states() == {0: "T", 1: "Z", 2: "S"})


def test_ranks_of_several_shells_are_one_job_and_one_is_missing() -> None:
    started = [
        subprocess.Popen(
            [sys.executable, "-c", RANK],
            env=rank_environment(rank, 3),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for rank in (2, 0)
    ]
    try:
        for one in started:
            assert one.stdout is not None
            one.stdout.readline()
        job = jobs.find(started[0].pid)
        assert job is not None
        assert [rank.rank for rank in job.ranks] == [0, 2]
        assert (job.launcher, job.missing) == (None, (1,))
    finally:
        for one in started:
            one.communicate(b"\n")


def test_a_worker_is_distinguished_from_its_rank() -> None:
    """Forked by multiprocessing and named as PyTorch names its workers."""
    code = (
        "import multiprocessing, time\n"
        "def work(ready):\n"
        "    open('/proc/self/comm', 'w').write('pt_data_worker')\n"
        "    ready.set(); time.sleep(600)\n"
        "context = multiprocessing.get_context('fork'); ready = context.Event()\n"
        "worker = context.Process(target=work, args=(ready,), daemon=True); worker.start()\n"
        "ready.wait(); print(worker.pid, flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        env=rank_environment(0, 1),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as rank:
        assert rank.stdout is not None
        worker = int(rank.stdout.readline())
        job = jobs.find(worker)
        rank.communicate("\n")
    assert job is not None
    assert [(process.pid, process.role, process.rank) for process in job.processes] == [
        (rank.pid, "rank", 0),
        (worker, "loader", 0),
    ]


def test_a_python_program_is_a_job_only_where_somebody_names_it() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", RANK], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as program:
        assert program.stdout is not None
        program.stdout.readline()
        job = jobs.find(program.pid)
        everything = {process.pid for job in jobs.find_all() for process in job.processes}
        program.communicate(b"\n")
    assert job is not None
    assert [(rank.pid, rank.rank) for rank in job.ranks] == [(program.pid, 0)]
    assert (job.launcher, job.world_size) == ("python", 1)
    assert program.pid not in everything


def test_a_thread_leads_to_the_job_of_its_process() -> None:
    code = (
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
        "print(flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as program:
        assert program.stdout is not None
        program.stdout.readline()
        threads = {int(name) for name in os.listdir(f"/proc/{program.pid}/task")}
        jobs_of = [jobs.find(thread) for thread in threads - {program.pid}]
        program.communicate(b"\n")
    (job,) = jobs_of
    assert job is not None
    assert [rank.pid for rank in job.ranks] == [program.pid]


def test_this_test_and_a_shell_are_no_jobs() -> None:
    sleep = shutil.which("sleep")
    assert sleep is not None
    with subprocess.Popen([sleep, "600"]) as other:
        assert jobs.find(other.pid) is None
        assert "not part" in jobs.unseen(other.pid)
        other.kill()


def test_another_users_job_is_counted_and_the_remedy_reported(tmp_path: Path) -> None:
    with launched(tmp_path, 2) as (launcher, _):
        seen = as_nobody(lambda: _describe_job(launcher))
    root = os.geteuid() == 0  # without its rights nobody can look as somebody else
    assert seen == {
        "ranks": [None, None] if root else [0, 1],
        "launcher": "torchrun",
        "missing": [],
        "remedies": ["run mgpu-doctor as root"] * 2 if root else [],
    }


def _describe_job(pid: int) -> dict[str, object]:
    job = jobs.find(pid)
    assert job is not None
    return {
        "ranks": [rank.rank for rank in job.ranks],
        "launcher": job.launcher,
        "missing": list(job.missing),
        "remedies": [failure.remedy for failure in job.unread if failure.pid is not None],
    }
