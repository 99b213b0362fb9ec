"""What the stack-based hang rules share: how long the job has hung, and the evidence in words."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.analysis.postmortem import dead_rank_stall as stall
from mgpu_doctor.analysis.postmortem.unmet_wait import SAME_WAIT
from mgpu_doctor.analysis.stacks import frames
from mgpu_doctor.analysis.stacks.hang_analysis import Hang, Kind
from mgpu_doctor.analysis.stacks.thread_states import ThreadState
from mgpu_doctor.analysis.stacks.wait_classifier import Doing
from mgpu_doctor.case.model import Case, Error, Rank
from mgpu_doctor.findings import Culprit, Evidence
from mgpu_doctor.formatting import format_count, format_ranks
from mgpu_doctor.rules.hang import blocked_rank

MOST_ROWS = 4
"""Rows of evidence for the culprits, and as many for the ranks that wait for them."""
LONG_WITHOUT_STEPS = 30.0
"""Seconds after which a hang is long if no step was recorded. A choice: a single write or answer
rarely blocks a thread for so long without it ever running."""
_TIMED_OUT = ("timed out waiting", "application timeout caused pair closure")
"""Parts of gloo's errors when a collective or message was not answered in time."""
STACKS, PROCESS_TABLE = "stacks", "process table"


def hang_of_kind(measures: Measures, kind: Kind) -> Hang | None:
    """The job's hang if it is of this kind."""
    hang = measures.hang
    return hang if hang is not None and hang.kind is kind else None


def hang_seconds(hang: Hang, case: Case) -> float:
    """Seconds for which the waiting ranks have waited: as the snapshots show, or as their black
    boxes say. A rank whose wait never returned waited until it ended."""
    pids = {state.pid for state in hang.waiting}
    newest = case.job_snapshots[-1].at
    waited = [
        (max(newest, rank.ended or newest) if rank.now.since <= newest else newest) - rank.now.since
        for rank in case.ranks
        if rank.stack_pid in pids and rank.now is not None and rank.now.phase == "wait"
    ]
    return max(hang.seconds, min(waited, default=0.0))


def is_long(hang: Hang, case: Case) -> bool:
    """Whether it lasts longer than a slow step: the limits of `hang-rank-dead` if steps were
    recorded, or so long that the waiting ranks timed out."""
    if have_timed_out(hang, case):
        return True
    return hang_seconds(hang, case) >= long_seconds(case.ranks)


def long_seconds(ranks: Iterable[Rank]) -> float:
    """Seconds from which on a hang of these ranks is long, by their steps on record."""
    walls = [rank.steps["wall_ns"] for rank in ranks if len(rank.steps)]
    if not walls:
        return LONG_WITHOUT_STEPS
    step = float(np.median(np.concatenate(walls))) * 1e-9
    return max(stall.LEAST_SECONDS, stall.LEAST_STEPS * step)


def have_timed_out(hang: Hang, case: Case) -> bool:
    """Whether every waiting rank ended with a timeout error. The first one closes its connections,
    so that another, which waited as long, may report that instead."""
    errors = {rank.stack_pid: rank.error for rank in case.ranks if rank.error is not None}
    ends = [errors.get(state.pid) for state in hang.waiting]
    timed_out = [end for end in ends if end is not None and _is_timeout(end)]
    longest = max((end.wait.seconds for end in timed_out if end.wait is not None), default=math.inf)
    return bool(timed_out) and all(
        end is not None
        and (_is_timeout(end) or (end.wait is not None and end.wait.seconds >= SAME_WAIT * longest))
        for end in ends
    )


def _is_timeout(error: Error) -> bool:
    return any(text in error.message.lower() for text in _TIMED_OUT)


def find_culprit(measures: Measures, state: ThreadState) -> Culprit:
    """The rank or process as a culprit, with its host if that is known."""
    rank = measures.rank(state.rank) if state.rank is not None else None
    hosts = measures.case.job.hosts
    host = rank.host if rank is not None else hosts[0] if len(hosts) == 1 else None
    return Culprit(state.rank, host=host, device=rank.device if rank else None, pid=state.host_pid)


def rank_numbers(states: Iterable[ThreadState]) -> tuple[int, ...]:
    """The known ranks, ascending."""
    return tuple(sorted(state.rank for state in states if state.rank is not None))


# ---------------------------------------------------------------------------------------- wording


def name_ranks(states: Iterable[ThreadState]) -> str:
    """`ranks 0 and 2`; `3 processes` if their ranks are unknown."""
    listed = list(states)
    known = rank_numbers(listed)
    if known:
        return format_ranks(known)
    return "a process" if len(listed) == 1 else f"{len(listed)} processes"


def name_process(state: ThreadState) -> str:
    """`rank 2`, or `process 4711`."""
    return f"process {state.host_pid}" if state.rank is None else f"rank {state.rank}"


def describe_waiters(hang: Hang, culprits: int, *, certain: bool) -> str:
    """`; ranks 0 and 1 wait for it in all_reduce at train.py:87`; empty if no one waits."""
    if not hang.waiting:
        return ""
    is_one = len(hang.waiting) == 1
    verb = ("waits" if is_one else "wait") if certain else f"{'is' if is_one else 'are'} waiting"
    operation = describe_operations(hang.waiting)
    whom = "it" if culprits == 1 else "them"
    return (
        f"; {name_ranks(hang.waiting)} {verb} for {whom}{f' in {operation}' if operation else ''}"
    )


def describe_operations(waiting: Iterable[ThreadState]) -> str:
    """Where they wait: `all_reduce at train.py:87`."""
    places: dict[str, None] = {}
    for state in waiting:
        line = frames.format_location(state.place)
        operation = state.operation or "a wait"
        places[f"{operation} at {line}" if line else operation] = None
    return " and ".join(list(places)[:2]) + (" and elsewhere" if len(places) > 2 else "")


# --------------------------------------------------------------------------------------- evidence


def culprit_rows(hang: Hang) -> tuple[Evidence, ...]:
    """What the culprits are doing."""
    rows = []
    for progress in hang.culprits[:MOST_ROWS]:
        state = progress.state
        source = PROCESS_TABLE if state.doing in (Doing.DEAD, Doing.STOPPED) else STACKS
        activity = blocked_rank.describe_activity(progress)
        line = blocked_rank.source_line(state)
        rows.append(Evidence(name_process(state), activity, "text", None, source, line))
    return tuple(rows)


def waiter_rows(hang: Hang) -> tuple[Evidence, ...]:
    """What the other ranks wait in, one row per place."""
    places: dict[tuple[str | None, str | None], list[ThreadState]] = {}
    for state in hang.waiting:
        places.setdefault((state.operation, blocked_rank.source_line(state)), []).append(state)
    return tuple(
        Evidence(name_ranks(states), f"in {operation or 'a wait'}", "text", None, STACKS, line)
        for (operation, line), states in list(places.items())[:MOST_ROWS]
    )


def duration_row(hang: Hang, case: Case) -> Evidence:
    """How long the job has hung, and what shows it."""
    seconds = hang_seconds(hang, case)
    if seconds > hang.seconds:
        measure = "time the other ranks have waited"
        return Evidence(measure, round(seconds, 1), "s", None, "black boxes")
    if seconds > case.job_snapshots[-1].at - case.job_snapshots[0].at:
        measure = "time since the main threads last ran"
        return Evidence(measure, round(seconds, 1), "s", None, "scheduler")
    is_polling = any(state.doing is Doing.JOINING for state in hang.waiting)
    is_polling |= any(progress.looping or progress.napping for progress in hang.culprits)
    how = "at the same place" if is_polling else "without using CPU"
    measure = f"blocked {how}, in {format_count(hang.snapshots, 'snapshot')}"
    return Evidence(measure, round(seconds, 3), "s", None, STACKS)
