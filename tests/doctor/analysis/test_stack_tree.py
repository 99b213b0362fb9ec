"""Stacks as one tree: nothing is lost or doubled, and it is fast for many ranks."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from mgpu_doctor.analysis.stacks import frames
from mgpu_doctor.analysis.stacks.prefix_tree import Branch, build_newest_tree
from mgpu_doctor.analysis.stacks.wait_classifier import Doing
from tests.support import job_snapshots
from tests.support.job_snapshots import (
    LOCKED,
    LOOP,
    ProcessState,
    SnapshotSeries,
    collective,
    snapshot_series,
)
from tests.support.seeds import at_most


def calls(branch: Branch) -> list[str]:
    return [frames.format_call(frame) for frame in branch.frames]


def leaves(branch: Branch) -> list[Branch]:
    if not branch.branches:
        return [branch]
    return [leaf for child in branch.branches for leaf in leaves(child)]


def test_common_calls_come_once_and_the_larger_branch_first() -> None:
    root = build_newest_tree(snapshot_series({1: LOCKED}).snapshots())
    assert root is not None
    assert calls(root) == ["<module> train.py:90", "main train.py:81", "train train.py:60"]
    most, one = root.branches
    assert (most.ranks, most.doing, most.operation) == ((0, 2, 3), Doing.COLLECTIVE, "all_reduce")
    assert (one.ranks, one.doing) == ((1,), Doing.LOCK)
    assert calls(one) == ["stand train.py:70", "take util.py:31"]


def test_a_rank_that_stands_where_others_go_on_is_a_branch_of_its_own() -> None:
    root = build_newest_tree(
        SnapshotSeries(
            {0: [ProcessState(LOOP)], 1: [ProcessState((*LOOP, "f util.py:3"))]}
        ).snapshots()
    )
    assert root is not None
    assert sorted(leaf.ranks for leaf in leaves(root)) == [(0,), (1,)]


def test_below_a_rank_that_waits_for_its_loader_comes_the_worker() -> None:
    job = snapshot_series({1: [ProcessState(job_snapshots.LOADING, syscall="poll")]}, ranks=2)
    job.workers = {
        1: [ProcessState((*job_snapshots.FETCHING, "get data.py:9"), syscall="flock /x")]
    }
    root = build_newest_tree(job.snapshots())
    assert root is not None
    (waits,) = (leaf for leaf in leaves(root) if leaf.ranks == (1,))
    assert calls(waits)[-1] == "get data.py:9"
    assert waits.doing is Doing.LOCK


def test_without_stacks_there_is_no_tree() -> None:
    assert build_newest_tree(()) is None
    assert (
        build_newest_tree(snapshot_series({}, others=[ProcessState(unread=True)]).snapshots())
        is None
    )


def test_a_dead_rank_has_a_place_and_an_unknown_one_its_pid() -> None:
    root = build_newest_tree(snapshot_series({1: [ProcessState(state="Z")]}).snapshots())
    assert root is not None
    assert {leaf.doing for leaf in leaves(root) if leaf.ranks == (1,)} == {Doing.DEAD}


@settings(max_examples=at_most(60), deadline=None)
@given(
    st.lists(
        st.lists(st.sampled_from(["a train.py:1", "b train.py:2", "c util.py:3"]), max_size=6),
        min_size=1,
        max_size=20,
    )
)
def test_every_rank_is_in_exactly_one_leaf_with_its_own_calls(stacks: list[list[str]]) -> None:
    job = SnapshotSeries(
        {rank: [ProcessState((*job_snapshots.ROOT, *stack))] for rank, stack in enumerate(stacks)}
    )
    root = build_newest_tree(job.snapshots())
    assert root is not None
    seen: dict[int, list[str]] = {}

    def walk(branch: Branch, way: list[str]) -> None:
        below = [*way, *calls(branch)]
        assert sorted(branch.ranks) == list(branch.ranks)
        for one in branch.branches:
            walk(one, below)
        if not branch.branches:
            for rank in branch.ranks:
                assert rank not in seen
                seen[rank] = below
        else:
            assert sorted(r for child in branch.branches for r in child.ranks) == list(branch.ranks)

    walk(root, [])
    assert seen == {
        rank: [
            frames.format_call(frame)
            for frame in frames.trail(job_snapshots.frames((*job_snapshots.ROOT, *calls)))
        ]
        for rank, calls in enumerate(stacks)
    }


def test_ten_thousand_ranks_stand_in_few_places() -> None:
    job = snapshot_series({417: LOCKED}, ranks=10_000)
    job.count = 1
    root = build_newest_tree(job.snapshots())
    assert root is not None
    assert [leaf.ranks for leaf in leaves(root)][-1] == (417,)
    assert sum(len(leaf.ranks) for leaf in leaves(root)) == 10_000
    assert leaves(root)[0].frames[-1].function == "all_reduce"
    assert collective()[-1].startswith("all_reduce")
