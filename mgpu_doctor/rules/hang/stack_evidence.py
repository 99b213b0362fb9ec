"""What several rules say of a job that stands, by looks at its processes."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.analysis.stacks import frames
from mgpu_doctor.analysis.stacks.hang_analysis import Kind, Standing
from mgpu_doctor.analysis.stacks.thread_states import Posture
from mgpu_doctor.analysis.stacks.wait_classifier import Doing
from mgpu_doctor.case.model import Case
from mgpu_doctor.findings import Culprit, Evidence
from mgpu_doctor.formatting import format_count, format_ranks
from mgpu_doctor.rules.hang import blocked_rank
from mgpu_doctor.rules.hang.stall import LEAST_SECONDS as LONG
from mgpu_doctor.rules.hang.stall import LEAST_STEPS

EVIDENCE_RANKS = 4
UNRECORDED = 30.0
"""Seconds from which a stand is long where nobody knows how long a step takes. A choice: one write
or answer seldom blocks a thread for so long without it ever running."""
_TIMED_OUT = ("timed out waiting", "application timeout caused pair closure")
"""In what gloo raises where a collective or a message was not answered in time."""
SOURCE, TABLE = "stacks", "process table"


def judged(measures: Measures, *kinds: Kind) -> Standing | None:
    """The job's standing, if it is of these kinds."""
    standing = measures.standing
    return standing if standing is not None and standing.kind in kinds else None


def stood(standing: Standing, case: Case) -> float:
    """Seconds for which the ranks that wait have waited: as seen, or as their boxes tell; those
    that came out of it no more did so until they ended."""
    pids = {one.pid for one in standing.waiting}
    seen = case.looks[-1].at
    told = [
        (max(seen, rank.ended or seen) if rank.now.since <= seen else seen) - rank.now.since
        for rank in case.ranks
        if rank.pid in pids and rank.now is not None and rank.now.phase == "wait"
    ]
    return max(standing.seconds, min(told, default=0.0))


def is_long(standing: Standing, case: Case) -> bool:
    """Longer than a step that takes its time: the limits of `hang-rank-dead` where steps were
    recorded; or so long that those who waited gave up."""
    if gave_up(standing, case):
        return True
    walls = [rank.steps["wall_ns"] for rank in case.ranks if len(rank.steps)]
    step = float(np.median(np.concatenate(walls))) * 1e-9 if walls else 0.0
    least = max(LONG, LEAST_STEPS * step) if walls else UNRECORDED
    return stood(standing, case) >= least


def gave_up(standing: Standing, case: Case) -> bool:
    """Whether everybody who was seen to wait ended by an error that says so."""
    errors = {rank.pid: rank.error.message for rank in case.ranks if rank.error is not None}
    waited = [errors.get(one.pid, "") for one in standing.waiting]
    return bool(waited) and all(
        any(text in message.lower() for text in _TIMED_OUT) for message in waited
    )


def suffering(standing: Standing, certain: bool, culprits: int) -> str:
    if not standing.waiting:
        return ""
    who = names(standing.waiting, small=True)
    verb = "waits" if len(standing.waiting) == 1 else "wait"
    operation = operations_of(standing.waiting)
    now = "" if certain else " now"
    whom = "it" if culprits == 1 else "them"
    return f"; {who} {verb} for {whom}{now}{f' in {operation}' if operation else ''}"


def operations_of(waiting: Iterable[Posture]) -> str:
    """Where they wait: `all_reduce at train.py:87`."""
    found: dict[str, None] = {}
    for one in waiting:
        at = frames.told(one.place)
        what = one.operation or "its own wait"
        found[f"{what} at {at}" if at else what] = None
    return " and ".join(list(found)[:2]) + (" and elsewhere" if len(found) > 2 else "")


def whereabouts(standing: Standing) -> tuple[Evidence, ...]:
    """What the culprits do, then what the others do."""
    rows = []
    for one in standing.culprits[:EVIDENCE_RANKS]:
        posture = one.posture
        source = TABLE if posture.doing in (Doing.DEAD, Doing.STOPPED) else SOURCE
        told, site = blocked_rank.does(one), blocked_rank.site(posture)
        rows.append(Evidence(label(posture), told, "text", None, source, site))
    places: dict[tuple[str | None, str | None], list[Posture]] = {}
    for waiter in standing.waiting:
        places.setdefault((waiter.operation, blocked_rank.site(waiter)), []).append(waiter)
    for (operation, site), those in list(places.items())[:EVIDENCE_RANKS]:
        who = names(those, small=True)
        rows.append(Evidence(who, f"in {operation or 'a wait'}", "text", None, SOURCE, site))
    return tuple(rows)


def seen_standing(standing: Standing, case: Case) -> Evidence:
    """For how long, and how that was seen."""
    told = stood(standing, case)
    looked = case.looks[-1].at - case.looks[0].at
    if told > standing.seconds:
        return Evidence("that the others have waited", round(told, 1), "s", None, "black boxes")
    if told > looked:
        measure = "since the main threads last ran"
        return Evidence(measure, round(told, 1), "s", None, "scheduler")
    joins = any(one.doing is Doing.JOINING for one in standing.waiting)
    turns = any(one.turning for one in standing.culprits)
    how = "in the same place" if joins or turns else "without processor time"
    measure = f"stood {how}, in {format_count(standing.looks, 'look')}"
    return Evidence(measure, round(told, 3), "s", None, SOURCE)


def culprit(measures: Measures, one: Posture) -> Culprit:
    known = measures.rank(one.rank) if one.rank is not None else None
    hosts = measures.case.job.hosts
    host = known.host if known is not None else hosts[0] if len(hosts) == 1 else None
    return Culprit(one.rank, host=host, device=known.device if known else None, pid=one.pid)


def numbers(those: Iterable[Posture]) -> tuple[int, ...]:
    return tuple(sorted(one.rank for one in those if one.rank is not None))


def names(those: Iterable[Posture], *, small: bool = False) -> str:
    listed = list(those)
    known = numbers(listed)
    many = "a process" if len(listed) == 1 else f"{len(listed)} processes"
    name = format_ranks(known) if known else many
    return name if small else f"{name[:1].upper()}{name[1:]}"


def label(one: Posture) -> str:
    return f"process {one.pid}" if one.rank is None else f"rank {one.rank}"
