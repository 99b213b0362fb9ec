"""Snapshots of several hosts as one: what is joined, and what must not be."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mgpu_doctor.case.job_snapshots import PIDS, pid_on_host, read_job_snapshot
from mgpu_doctor.case.joint_snapshots import MOST_BYTES, join_snapshots


def snapshot(pid: int, rank: int, threads: int = 1) -> dict[str, Any]:
    frames = [["all_reduce", "/site/distributed_c10d.py", 3252]]
    return {
        "at": 1000.0 + rank,
        "launcher": None if rank else "torchrun",
        "world_size": 2,
        "processes": [{"pid": pid, "parent": 3, "role": "rank", "rank": rank, "state": "S"}],
        "stacks": [
            {
                "pid": pid,
                "at": 1000.0,
                "source": "worker socket",
                "threads": [
                    {"id": number, "main": not number, "frames": frames}
                    for number in range(threads)
                ],
            }
        ],
        "loops": [],
        "missing": [],
        "untold": [],
    }


HOSTS = ("node-a", "node-b", "node-c")


def test_all_ranks_are_in_one_snapshot_and_told_apart_if_their_pids_are_equal() -> None:
    joint = join_snapshots({"node-c": snapshot(10, 1), "node-a": snapshot(10, 0)}, HOSTS)
    read = read_job_snapshot(joint)
    assert read is not None
    numbers = {rank.rank: rank.pid for rank in read.ranks}
    assert numbers == {0: 10, 1: 10 + 2 * PIDS}
    assert {rank: pid_on_host(pid) for rank, pid in numbers.items()} == {0: 10, 1: 10}
    assert {stack.pid for stack in read.stacks} == {*numbers.values()}
    assert [process.parent for process in read.processes] == [3 + 2 * PIDS, 3]
    assert read.hosts == HOSTS
    assert (read.at, read.launcher, read.world_size) == (1001.0, "torchrun", 2)


def test_of_one_host_pids_stay() -> None:
    read = read_job_snapshot(join_snapshots({"node-a": snapshot(10, 0)}, ("node-a",)))
    assert read is not None
    assert [rank.pid for rank in read.ranks] == [10]
    assert read.hosts == ()
    assert join_snapshots({}, HOSTS) is None


@pytest.mark.parametrize(("threads", "kept"), [(1, 1), (250, 250), (3000, 1)])
def test_of_long_snapshots_the_main_threads_are_kept(threads: int, kept: int) -> None:
    joint = join_snapshots({"node-a": snapshot(10, 0, threads), "node-b": snapshot(11, 1)}, HOSTS)
    assert joint is not None
    assert len(json.dumps(joint)) <= MOST_BYTES
    assert [len(stack["threads"]) for stack in joint["stacks"]] == [kept, 1]
    assert joint["stacks"][0]["threads"][0]["main"]
