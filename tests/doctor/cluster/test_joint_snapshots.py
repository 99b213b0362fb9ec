"""Snapshots of several hosts as one: what is joined, and what must not be."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mgpu_doctor.case.job_snapshots import read_job_snapshot
from mgpu_doctor.cluster.joint_snapshots import MOST_BYTES, join_snapshots


def snapshot(pid: int, rank: int, threads: int = 1) -> dict[str, Any]:
    frames = [["all_reduce", "/site/distributed_c10d.py", 3252]]
    return {
        "at": 1000.0 + rank,
        "launcher": None if rank else "torchrun",
        "world_size": 2,
        "processes": [{"pid": pid, "role": "rank", "rank": rank, "state": "S"}],
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


def test_all_ranks_are_in_one_snapshot() -> None:
    joint = join_snapshots({"node-a": snapshot(10, 0), "node-b": snapshot(11, 1)})
    read = read_job_snapshot(joint)
    assert read is not None
    assert [(rank.pid, rank.rank) for rank in read.ranks] == [(10, 0), (11, 1)]
    assert [stack.pid for stack in read.stacks] == [10, 11]
    assert (read.at, read.launcher, read.world_size) == (1001.0, "torchrun", 2)


def test_processes_of_one_number_are_not_taken_for_each_other() -> None:
    assert join_snapshots({"node-a": snapshot(10, 0), "node-b": snapshot(10, 1)}) is None
    assert join_snapshots({}) is None


@pytest.mark.parametrize(("threads", "kept"), [(1, 1), (250, 250), (3000, 1)])
def test_of_long_snapshots_the_main_threads_are_kept(threads: int, kept: int) -> None:
    joint = join_snapshots({"node-a": snapshot(10, 0, threads), "node-b": snapshot(11, 1)})
    assert joint is not None
    assert len(json.dumps(joint)) <= MOST_BYTES
    assert [len(stack["threads"]) for stack in joint["stacks"]] == [kept, 1]
    assert joint["stacks"][0]["threads"][0]["main"]
