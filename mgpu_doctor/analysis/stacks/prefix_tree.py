"""The stacks of all ranks as one prefix tree with rank sets, after STAT (Arnold et al., IPDPS
2007). Equal stacks are merged once: ten thousand ranks are in few places.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mgpu_doctor.analysis.stacks.thread_states import (
    ThreadState,
    group_by_trail,
    list_thread_states,
)
from mgpu_doctor.analysis.stacks.wait_classifier import Doing
from mgpu_doctor.case.job_snapshots import Frame, JobSnapshot


@dataclass(frozen=True, slots=True)
class Branch:
    """The frames that some ranks share, and the branches below them."""

    frames: tuple[Frame, ...]
    """Outermost first."""
    ranks: tuple[int, ...]
    """Ascending; negative: the pid of a process whose rank is unknown."""
    doing: Doing | None
    """What the ranks do in the last frame; None if they branch."""
    operation: str | None = None
    branches: tuple[Branch, ...] = ()
    """The larger first."""


class _Node:
    __slots__ = ("children", "ends", "frame", "ranks")

    def __init__(self, frame: Frame | None) -> None:
        self.frame = frame
        self.ranks: list[int] = []
        self.children: dict[Frame, _Node] = {}
        self.ends: dict[tuple[Doing, str | None], list[int]] = {}


def build_newest_tree(snapshots: Sequence[JobSnapshot]) -> Branch | None:
    """The tree of the newest snapshot; None without stacks."""
    return build_tree(list_thread_states(snapshots[-1])) if snapshots else None


def build_tree(thread_states: Sequence[ThreadState]) -> Branch | None:
    """The tree of these ranks. If a rank waits for a data-loader worker, the worker's stack follows
    the rank's."""
    shown = [
        state
        for state in thread_states
        if state.trail or state.doing in (Doing.DEAD, Doing.STOPPED)
    ]
    if not any(thread_state.trail for thread_state in shown):
        return None
    root = _Node(None)
    for trail, states in group_by_trail(shown).items():
        workers: dict[tuple[Frame, ...], list[ThreadState]] = {}
        for state in states:
            workers.setdefault(state.worker.trail if state.worker else (), []).append(state)
        for below, waiting in workers.items():
            _insert(root, (*trail, *below), waiting)
    return _branch(root)


def _insert(root: _Node, path: Iterable[Frame], states: Sequence[ThreadState]) -> None:
    """Adds ranks with the same frames to the tree."""
    ranks = [_number(state) for state in states]
    node = root
    node.ranks += ranks
    for frame in path:
        node = node.children.setdefault(frame, _Node(frame))
        node.ranks += ranks
    for state, rank in zip(states, ranks, strict=True):
        node.ends.setdefault((state.point.doing, state.point.operation), []).append(rank)


def _number(state: ThreadState) -> int:
    return state.rank if state.rank is not None else -state.pid


def _branch(node: _Node) -> Branch:
    """The node as a branch; frames without branching are one branch."""
    way = [node.frame] if node.frame is not None else []
    while len(node.children) == 1 and not node.ends:
        (node,) = node.children.values()
        if node.frame is not None:
            way.append(node.frame)
    parts = [_branch(child) for child in node.children.values()]
    ends = list(node.ends.items())
    if len(ends) == 1 and not parts:
        ((doing, operation), ranks) = ends[0]
        return Branch(tuple(way), tuple(sorted(ranks)), doing, operation)
    parts += [Branch((), tuple(sorted(ranks)), *what) for what, ranks in ends]
    parts.sort(key=lambda branch: (-len(branch.ranks), branch.ranks))
    return Branch(tuple(way), tuple(sorted(node.ranks)), None, None, tuple(parts))
