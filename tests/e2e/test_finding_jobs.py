"""Running jobs are found from outside, however they were started."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from mgpu_probes.outside import jobs

from tests.support.jobs import JOBS, alone, kill_family, torchrun, until

pytestmark = [pytest.mark.slow, pytest.mark.untimed]

SPAWNING = str(JOBS / "waiting_ranks.py")


@contextmanager
def ready(command: Sequence[str], folder: Path, ranks: int = 2) -> Iterator[int]:
    """The pid of the running command, all of whose ranks have met."""
    environment = os.environ | {"READY": str(folder)}
    with (
        alone(),
        subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) as job,
    ):
        try:
            until(lambda: sum(bool(one.read_text()) for one in folder.glob("ready*")) == ranks)
            yield job.pid
        finally:
            kill_family(job.pid)


def by_role(job: jobs.RunningJob) -> dict[str, list[int | None]]:
    found: dict[str, list[int | None]] = {}
    for one in job.processes:
        found.setdefault(one.role, []).append(one.rank)
    return found


@pytest.mark.parametrize(
    ("how", "meeting", "numbered"),
    [
        ("mp", "file", True),
        ("spawn", "tcp", True),
        ("fork", "tcp", True),
        ("forkserver", "tcp", True),
        ("fork", "file", False),  # nothing tells that the first one left is rank 0
    ],
)
def test_what_multiprocessing_starts_is_found_with_its_workers(
    tmp_path: Path, how: str, meeting: str, numbered: bool
) -> None:
    with ready([sys.executable, SPAWNING, how, meeting], tmp_path) as pid:
        job = jobs.find(pid)
        numbers = {int(file.read_text()): file.name[-1] for file in tmp_path.glob("ready*")}
        everywhere = [one for one in jobs.find_all() if one.launcher_pid == pid]
    assert job is not None
    known = {pid: int(number) if numbered else None for pid, number in numbers.items()}
    assert {one.pid: one.rank for one in job.ranks} == known
    roles = by_role(job)
    assert (roles["launcher"], roles["loader"]) == ([None], [0, 1] if numbered else [None] * 2)
    assert job.launcher == "mp.spawn"
    pids = [[one.pid for one in found.ranks] for found in everywhere]
    assert pids == [[one.pid for one in job.ranks]]


def test_torchrun_is_found_from_the_doctors_own_run_and_from_a_loaders_worker(
    tmp_path: Path,
) -> None:
    """Without the doctor: test_hangs.py."""
    recording = str(tmp_path / "recording")
    doctor = [sys.executable, "-m", "mgpu_doctor", "run", "--dir", recording, "--"]
    with ready([*doctor, *torchrun("waiting_ranks.py", "torchrun")], tmp_path) as pid:
        job = jobs.find(pid)
        assert job is not None
        worker = next(one for one in job.processes if one.role == "loader")
        again = jobs.find(worker.pid)
    assert by_role(job) == {"launcher": [None], "rank": [0, 1], "loader": [0, 1]}
    assert (job.launcher, job.world_size, job.missing, job.unread) == ("torchrun", 2, (), ())
    assert not any("mgpu_doctor" in " ".join(one.command) for one in job.processes)
    assert again is not None
    assert [one.pid for one in again.processes] == [one.pid for one in job.processes]


def test_the_tasks_of_a_cluster_without_a_parent_in_common_are_one_job() -> None:
    """TF_CONFIG is in the environment; the framework that reads it does not matter here."""
    cluster = {"worker": ["localhost:29731", "localhost:29732"]}
    started = []
    try:
        for rank in range(2):
            config = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": rank}})
            code = "print(flush=True); input()"
            started.append(
                subprocess.Popen(
                    ["/bin/sh", "-c", f"{sys.executable} -c '{code}'; true"],
                    env=os.environ | {"TF_CONFIG": config},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                )
            )
        for one in started:
            assert one.stdout is not None
            one.stdout.readline()
        job = jobs.find(started[1].pid)
    finally:
        for one in started:
            one.communicate(b"\n")
    assert job is not None
    assert (job.launcher, job.world_size, job.missing) == ("TF_CONFIG", 2, ())
    assert [one.rank for one in job.ranks] == [0, 1]
