"""The stacks of all ranks as one prefix tree with rank sets, after STAT (Arnold et al., IPDPS
2007). Stacks that are alike are merged once: ten thousand ranks stand in few places.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mgpu_doctor.analysis.stacks.thread_states import Posture, distinct, postures
from mgpu_doctor.analysis.stacks.wait_classifier import Doing
from mgpu_doctor.case.job_snapshots import Frame, Look


@dataclass(frozen=True, slots=True)
class Branch:
    """What some ranks have in common: one way down, until they part."""

    frames: tuple[Frame, ...]
    """Outermost first."""
    ranks: tuple[int, ...]
    """In order; negative: the pid of a process whose rank is not known."""
    doing: Doing | None
    """Where the way ends: what they do there."""
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


def tree_of(looks: Sequence[Look]) -> Branch | None:
    """The tree of the newest look; None where there are no stacks."""
    return grown(postures(looks[-1])) if looks else None


def grown(found: Sequence[Posture]) -> Branch | None:
    """The tree of these ranks; below a rank that waits for its data-loader worker comes the
    worker's stack."""
    shown = [
        posture
        for posture in found
        if posture.trail or posture.doing in (Doing.DEAD, Doing.STOPPED)
    ]
    if not any(one.trail for one in shown):
        return None
    root = _Node(None)
    for trail, same in distinct(shown).items():
        workers: dict[tuple[Frame, ...], list[Posture]] = {}
        for one in same:
            workers.setdefault(one.worker.trail if one.worker else (), []).append(one)
        for below, those in workers.items():
            _plant(root, (*trail, *below), those)
    return _branch(root)


def _plant(root: _Node, way: Iterable[Frame], those: Sequence[Posture]) -> None:
    ranks = [_number(posture) for posture in those]
    node = root
    node.ranks += ranks
    for frame in way:
        node = node.children.setdefault(frame, _Node(frame))
        node.ranks += ranks
    for one, rank in zip(those, ranks, strict=True):
        node.ends.setdefault((one.point.doing, one.point.operation), []).append(rank)


def _number(posture: Posture) -> int:
    return posture.rank if posture.rank is not None else -posture.pid


def _branch(node: _Node) -> Branch:
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
    parts.sort(key=lambda one: (-len(one.ranks), one.ranks))
    return Branch(tuple(way), tuple(sorted(node.ranks)), None, None, tuple(parts))
