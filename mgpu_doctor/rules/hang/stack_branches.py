"""The stacks of all ranks as the tree that a diagnosis shows, with the culprits marked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

from mgpu_doctor.analysis.stacks import frames, prefix_tree
from mgpu_doctor.analysis.stacks.thread_states import list_thread_states
from mgpu_doctor.analysis.stacks.wait_classifier import WAITING
from mgpu_doctor.case.model import Case, Outcome
from mgpu_doctor.findings import Branch, Finding

MOST_BRANCHES = 512
"""However many ranks there are, their stacks end in few places."""
MOST_CALLS = 64


def build_branches(case: Case, findings: Iterable[Finding]) -> tuple[Branch, ...]:
    """The tree of the newest snapshot, root first; empty if no stack was read, or if the job
    completed."""
    root = prefix_tree.build_newest_tree(case.job_snapshots)
    if root is None or case.job.outcome is Outcome.COMPLETED:
        return ()
    culprits = frozenset(
        culprit.rank if culprit.rank is not None else -(culprit.pid or 0)
        for finding in findings
        if finding.code.startswith(("hang-", "straggler-"))
        for culprit in finding.culprits
    )
    return tuple(islice(_walk(root, 0, culprits), MOST_BRANCHES))


def describe_places(case: Case) -> dict[int, str]:
    """Pid of a rank in snapshots -> where its newest stack is: `all_reduce train.py:87`,
    `load() data.py:9`, or `load() data.py:9 (data-loader worker 4711)` if it waits for that one."""
    if not case.job_snapshots:
        return {}
    places = {}
    for state in list_thread_states(case.job_snapshots[-1]):
        place = state.point.place
        if place is not None:
            what = state.operation if state.doing in WAITING else f"{frames.function_name(place)}()"
            whose = f" (data-loader worker {state.worker.host_pid})" if state.worker else ""
            places[state.pid] = f"{what} {frames.format_location(place)}{whose}"
    return places


def _walk(branch: prefix_tree.Branch, depth: int, culprits: frozenset[int]) -> Iterator[Branch]:
    calls = [frames.format_call(frame) for frame in branch.frames]
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
        culprit=bool(branch.ranks) and culprits.issuperset(branch.ranks),
    )
    for child in branch.branches:
        yield from _walk(child, depth + 1, culprits)
