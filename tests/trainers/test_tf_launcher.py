"""The launcher of TensorFlow's clusters, with processes that only pretend to train."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pytest

from tests.support.jobs import JOBS, gone, until

pytestmark = pytest.mark.slow


@contextmanager
def launched(*todo: str, servers: int = 0) -> Iterator[subprocess.Popen[str]]:
    """Of each process, what it does; at the end nobody is left of those who said who they are."""
    workers = sum(each.startswith("worker") for each in todo)
    launcher = [sys.executable, "-m", "mgpu_trainers.tensorflow.launcher"]
    sizes = ["--workers", str(workers), "--servers", str(servers)]
    with subprocess.Popen(
        [*launcher, *sizes, "cluster_task", *todo],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(JOBS)},
    ) as launcher_process:
        try:
            yield launcher_process
        finally:
            launcher_process.kill()


def read_pids(process: subprocess.Popen[str], lines: int) -> dict[str, int]:
    """The ids of so many processes, by what they are."""
    assert process.stdout
    said = [process.stdout.readline().split() for _ in range(lines)]
    return {me: int(pid) for me, pid in said}


def list_survivors(pids: dict[str, int]) -> list[str]:
    return [me for me, pid in pids.items() if psutil.pid_exists(pid)]


@pytest.mark.parametrize(
    ("todo", "code", "sentence"),
    [
        (("worker-0=ends:0", "worker-1=ends:0"), 0, ""),
        (("worker-0=waits", "worker-1=ends:7"), 7, "worker 1 ended with 7; ending the others\n"),
        (("worker-0=deaf", "worker-1=ends:1"), 1, "worker 1 ended with 1; ending the others\n"),
    ],
    ids=["all well", "one fails", "one does not hear"],
)
def test_who_ends_first_decides_and_takes_the_others_along(
    todo: tuple[str, ...], code: int, sentence: str
) -> None:
    with launched(*todo) as job:
        pids = read_pids(job, 2)
        _, said = job.communicate()
        assert (job.returncode, said, list_survivors(pids)) == (code, sentence, [])


def test_a_cluster_with_servers_is_over_when_its_chief_is() -> None:
    todo = ("chief-0=ends:0", "worker-0=waits", "worker-1=waits", "ps-0=waits")
    with launched(*todo, servers=1) as job:
        pids = read_pids(job, 4)
        os.kill(pids["worker-1"], signal.SIGKILL)
        assert job.stderr
        assert job.stderr.readline() == "worker 1 was ended by SIGKILL; the others go on\n"
        job.communicate()
        assert (job.returncode, list_survivors(pids)) == (0, [])


@pytest.mark.parametrize(
    ("lost", "name"), [("ps-0", "parameter server 0"), ("worker-0", "worker 0")]
)
def test_without_weights_or_workers_it_ends(lost: str, name: str) -> None:
    with launched("chief-0=waits", "worker-0=waits", "ps-0=waits", servers=1) as job:
        pids = read_pids(job, 3)
        os.kill(pids[lost], signal.SIGSEGV)
        _, said = job.communicate()
        assert said == f"{name} was ended by SIGSEGV; ending the others\n"
        assert (job.returncode, list_survivors(pids)) == (128 + signal.SIGSEGV, [])


def test_it_ends_as_asked_and_at_once_when_asked_again() -> None:
    with launched("worker-0=deaf", "worker-1=waits") as job:
        pids = read_pids(job, 2)
        hears = psutil.Process(pids["worker-1"])
        job.send_signal(signal.SIGTERM)
        hears.wait(60)
        job.send_signal(signal.SIGTERM)
        _, said = job.communicate()
        assert (job.returncode, said, list_survivors(pids)) == (-signal.SIGTERM, "", [])


def test_processes_do_not_outlive_a_killed_launcher() -> None:
    with launched("worker-0=deaf", "worker-1=waits") as job:
        workers = read_pids(job, 2).values()
        job.kill()
        until(lambda: all(map(gone, workers)))
