"""The ranks' stacks as one tree, as a diagnosis shows it: with who is to blame. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from mgpu_doctor.analysis.stacks import frames, prefix_tree
from mgpu_doctor.analysis.stacks.thread_states import postures
from mgpu_doctor.analysis.stacks.wait_classifier import WAITING
from mgpu_doctor.case.model import Case, Outcome
from mgpu_doctor.findings import Branch, Finding

MOST = 512
"""Branches that are kept: ranks of a job stand in few places, however many they are."""
MOST_CALLS = 64


def branches(case: Case, findings: Iterable[Finding]) -> tuple[Branch, ...]:
    """The tree of the newest look, root first; empty where no stack was read, and where the job
    went on to its end."""
    root = prefix_tree.tree_of(case.looks)
    if root is None or case.job.outcome is Outcome.COMPLETED:
        return ()
    accused = {
        who.rank if who.rank is not None else -(who.pid or 0)
        for one in findings
        if one.code.startswith(("hang-", "straggler-"))
        for who in one.culprits
    }
    found = []
    for branch in _walk(root, 0, frozenset(accused)):
        found.append(branch)
        if len(found) == MOST:
            break
    return tuple(found)


def places_of(case: Case) -> dict[int, str]:
    """Rank process -> where it is, by its newest stack: `all_reduce train.py:87`, `load()
    data.py:9`."""
    if not case.looks:
        return {}
    found = {}
    for one in postures(case.looks[-1]):
        place = one.point.place
        if place is not None:
            what = one.operation if one.doing in WAITING else f"{frames.name(place)}()"
            found[one.pid] = f"{what} {frames.told(place)}"
    return found


def _walk(branch: prefix_tree.Branch, depth: int, accused: frozenset[int]) -> Iterator[Branch]:
    calls = [frames.call(frame) for frame in branch.frames]
    left_out = len(calls) - MOST_CALLS
    if left_out > 0:
        half = MOST_CALLS // 2
        calls = [*calls[:half], f"… {left_out} more", *calls[-half:]]
    yield Branch(
        depth=depth,
        ranks=tuple(rank for rank in branch.ranks if rank >= 0),
        processes=len(branch.ranks),
        calls=tuple(calls),
        doing=branch.doing.value if branch.doing is not None else None,
        operation=branch.operation,
        culprit=bool(branch.ranks) and accused.issuperset(branch.ranks),
    )
    for one in branch.branches:
        yield from _walk(one, depth + 1, accused)
