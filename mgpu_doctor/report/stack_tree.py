"""The ranks' stacks as a tree of lines that fit: common calls once, then where ranks diverge.

4 ranks  <module> train.py:90 → main train.py:81 → train train.py:60
├─ 0, 2-3  step train.py:48 → all_reduce torch/distributed/distributed_c10d.py:3252  (collective)
└▸ 1  load data.py:17  (lock)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mgpu_doctor.findings import Branch
from mgpu_doctor.formatting import format_count, format_rank_numbers
from mgpu_doctor.report import text

HEIGHT = 16
ARROW = " → "
LONGEST_LABEL = 24


@dataclass(frozen=True, slots=True)
class Line:
    text: str
    culprit: bool


def tree_lines(tree: Sequence[Branch], width: int, height: int = HEIGHT) -> list[Line]:
    """At most `height` lines of at most `width` characters. What does not fit is counted; the
    culprits' branches, and those that lead there, are kept first."""
    branches = _select_branches(tree, height)
    lines = []
    for index, branch in enumerate(branches):
        start = "" if not branch.depth else _rails(branches, index)
        lines.append(Line(_line(branch, start, width), branch.culprit))
    left_out = len(tree) - len(branches)
    if left_out:
        lines.append(Line(text.cut(f"… {left_out} more branches", width), False))
    return lines


def _select_branches(tree: Sequence[Branch], height: int) -> list[Branch]:
    if len(tree) <= height:
        return list(tree)
    wanted: set[int] = set()
    for index in sorted(
        range(len(tree)), key=lambda index: (not tree[index].culprit, tree[index].depth, index)
    ):
        way = _find_ancestors(tree, index) - wanted
        if len(wanted) + len(way) < height:
            wanted |= way
    return [branch for index, branch in enumerate(tree) if index in wanted]


def _find_ancestors(tree: Sequence[Branch], index: int) -> set[int]:
    """The branch and those that lead to it."""
    ancestors = {index}
    depth = tree[index].depth
    for earlier in range(index - 1, -1, -1):
        if tree[earlier].depth < depth:
            ancestors.add(earlier)
            depth = tree[earlier].depth
    return ancestors


def _rails(tree: Sequence[Branch], index: int) -> str:
    branch = tree[index]
    rails = "".join(
        "│  " if _has_later_sibling(tree, index, level) else "   "
        for level in range(1, branch.depth)
    )
    corner = "├" if _has_later_sibling(tree, index, branch.depth) else "└"
    return f"{rails}{corner}{'▸' if branch.culprit else '─'} "


def _has_later_sibling(tree: Sequence[Branch], index: int, level: int) -> bool:
    """Returns whether another branch of this depth follows from the same parent."""
    for later in tree[index + 1 :]:
        if later.depth <= level:
            return later.depth == level
    return False


def _line(branch: Branch, start: str, width: int) -> str:
    label = text.cut(_ranks(branch), LONGEST_LABEL)
    operation = branch.operation if branch.doing == "collective" else branch.doing
    end = f"  ({text.cut(text.line(operation), 32)})" if operation else ""
    room = width - len(start) - len(label) - 2 - len(end)
    if room < 12 or not branch.calls:
        return text.cut(f"{start}{label}{end}", width)
    return f"{start}{label}  {_calls(branch.calls, room)}{end}"


def _ranks(branch: Branch) -> str:
    unknown = branch.processes - len(branch.ranks)
    if not branch.depth and not unknown:
        return format_count(len(branch.ranks), "rank")
    if unknown:
        return f"{branch.processes} process{'' if branch.processes == 1 else 'es'}"
    return format_rank_numbers(branch.ranks, limit=4)


def _calls(calls: Sequence[str], room: int) -> str:
    """Returns the innermost calls that fit; omitted outer calls are counted."""
    newest: list[str] = []
    for index in range(len(calls) - 1, -1, -1):
        call = text.line(calls[index])
        ellipsis = f"… {index} more{ARROW}" if index else ""
        trial = ARROW.join([call, *newest])
        if newest and len(ellipsis) + len(trial) > room:
            return text.cut(f"… {index + 1} more{ARROW}{ARROW.join(newest)}", room)
        newest.insert(0, call)
    return text.cut(ARROW.join(newest), room)
