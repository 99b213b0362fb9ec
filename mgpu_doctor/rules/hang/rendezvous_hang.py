"""Ranks wait for others that do not join, by their stacks and the process table. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.analysis.stacks.hang_analysis import LEAST_SECONDS, Kind, Standing
from mgpu_doctor.analysis.stacks.progress import Motion
from mgpu_doctor.analysis.stacks.wait_classifier import Doing
from mgpu_doctor.case.model import Case
from mgpu_doctor.findings import Culprit, Evidence, Finding, Fix, Severity
from mgpu_doctor.formatting import format_count, format_ranks
from mgpu_doctor.rules.hang.rank_behind import late
from mgpu_doctor.rules.hang.stack_evidence import (
    UNRECORDED,
    culprit,
    is_long,
    judged,
    names,
    numbers,
    seen_standing,
    whereabouts,
)
from mgpu_doctor.rules.rule import Limits, Rule

STARTED_LONG_AGO = 60.0
"""Seconds after which a rank has imported its libraries: 3 to 20 s on a quiet machine."""


def _unjoined(standing: Standing, measures: Measures) -> Iterable[Finding]:
    """`hang-rendezvous` where ranks are gone or were never there, or where nobody is to blame."""
    dead = [one for one in standing.culprits if one.posture.doing is Doing.DEAD]
    elsewhere = [one for one in standing.culprits if one not in dead]
    case = measures.case
    absent = sorted({*standing.missing, *numbers(one.posture for one in dead)})
    long = is_long(standing, case)
    if not absent and not long and not (standing.complete and _all_old(standing, case)):
        return  # they may be finding each other, or others be on their way on other hosts
    here = len(standing.waiting) + len(elsewhere)
    world = standing.world_size
    waiting = names(standing.waiting, small=True)
    join = "waits" if len(standing.waiting) == 1 else "wait"
    if absent:
        gone = format_ranks(absent).capitalize()
        title = f"{gone} {_are(absent, dead)}; {waiting} {join} in init_process_group"
    else:
        title = f"{waiting.capitalize()} {join} in init_process_group, and nobody joins"
    yield Finding(
        code="hang-rendezvous",
        severity=Severity.CRITICAL if absent or long else Severity.WARNING,
        confidence=0.9 if long else 0.75 if absent else 0.55,
        title=title,
        cause=_why_nobody_joins(absent, here, world),
        culprits=tuple(
            next(
                (culprit(measures, one.posture) for one in dead if one.posture.rank == number),
                Culprit(number),
            )
            for number in absent
        ),
        victims=numbers(standing.waiting),
        evidence=(
            Evidence("processes of ranks", here, "ranks", world, "process table"),
            *whereabouts(standing),
            seen_standing(standing, case),
        ),
        fixes=(
            Fix(
                "start-them-all",
                "Start as many ranks as WORLD_SIZE says, with the same address",
                "Compare WORLD_SIZE, MASTER_ADDR and MASTER_PORT of all ranks (`tr '\\0' '\\n' < "
                "/proc/PID/environ | grep -E 'WORLD_SIZE|MASTER_|^RANK'`); rank 0 listens there. "
                "`torchrun --nproc-per-node N` sets them alike; on several hosts its `--nnodes` "
                "and `--rdzv-endpoint` must be the same everywhere.",
            ),
        ),
    )


def _are(absent: list[int], dead: Sequence[Motion]) -> str:
    one = len(absent) == 1
    if absent == sorted(numbers(motion.posture for motion in dead)):
        return "has ended" if one else "have ended"
    return "is not there" if one else "are not there"


def _all_old(standing: Standing, case: Case) -> bool:
    """Whether they have all run for so long that they are not just starting."""
    pids = {one.pid for one in standing.waiting}
    started = {rank.pid: rank.started for rank in case.ranks if rank.pid in pids}
    return len(started) == len(pids) and all(
        at is not None and case.looks[-1].at - at >= STARTED_LONG_AGO for at in started.values()
    )


def _why_nobody_joins(absent: list[int], here: int, world: int | None) -> str:
    if absent:
        return (
            f"WORLD_SIZE says {world or 'more'}, and {format_count(here, 'rank')} of them run "
            "here: the others were never started, or have ended."
        )
    if world is not None and here >= world:
        return (
            "All ranks run and all of them wait: they do not find each other. Their addresses, "
            "ports or world sizes differ, or a firewall is between them."
        )
    return "The ranks of other hosts have not come: not started, or another address or port."


def _joining(measures: Measures, _: Limits) -> Iterable[Finding]:
    standing = judged(measures, Kind.JOINING)
    if standing is None:
        return
    elsewhere = [one for one in standing.culprits if one.posture.doing is not Doing.DEAD]
    if elsewhere and len(elsewhere) == len(standing.culprits) and not standing.missing:
        yield from late(standing, measures, "hang-rendezvous")
    else:
        yield from _unjoined(standing, measures)


RULES: tuple[Rule, ...] = (
    Rule(
        code="hang-rendezvous",
        family="hang",
        summary="The job never starts: ranks wait for others that do not join.",
        measured="Ranks stand in init_process_group, by their stacks. The processes of the job are "
        "counted against WORLD_SIZE; a rank that runs but stands elsewhere is named with its line.",
        thresholds=f"They must stand for {LEAST_SECONDS:g} s. Where all that are missing belong to "
        f"other hosts, {UNRECORDED:.0f} s.",
        fixes="Start the missing ranks; compare WORLD_SIZE, MASTER_ADDR and MASTER_PORT.",
        examine=_joining,
    ),
)
