"""Ranks call collectives that do not match: who called what and where, by the flight recorder."""

from __future__ import annotations

from collections.abc import Iterable

from mgpu_doctor.analysis.collectives.collective_waits import GAPS, LEAST_WAIT
from mgpu_doctor.analysis.collectives.divergence import Divergence, Kind
from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.analysis.stacks.hang_analysis import MAJORITY, MAJORITY_BY_PLACE
from mgpu_doctor.analysis.stacks.hang_analysis import Kind as HangKind
from mgpu_doctor.case.flight_records import Collective
from mgpu_doctor.case.model import State
from mgpu_doctor.findings import Culprit, Evidence, Finding, Severity
from mgpu_doctor.formatting import format_ranks
from mgpu_doctor.rules.culprits import culprit_of
from mgpu_doctor.rules.failures.log_rules import log_detector
from mgpu_doctor.rules.hang.failed_wait import SPLIT_WAIT
from mgpu_doctor.rules.hang.mismatch_text import (
    describe_cause,
    format_group,
    format_place,
    innermost_difference,
    other_call,
    ranks_went_on,
    suggest_fixes,
    write_title,
)
from mgpu_doctor.rules.hang.split_hang import find_split_hang
from mgpu_doctor.rules.rule import Detector, Limits, Rule

SOURCE = "flight recorder"
MOST_ROWS = 4
"""Deviating ranks that the evidence lists."""
MOST_NAMED = 16
"""Ranks without a dump that the evidence names."""

CONFIDENCE = {
    Kind.SKIPPED: 0.95,
    Kind.EXTRA: 0.95,
    Kind.OPERATION: 0.95,
    Kind.SHAPE: 0.95,
    Kind.DTYPE: 0.95,
    Kind.BEHIND: 0.9,
    Kind.DEADLOCK: 0.9,
    Kind.AHEAD: 0.6,
    Kind.SITE: 0.6,
}
IF_PERHAPS_NOT_BLOCKED, IF_CULPRIT_LEFT_NO_DUMP, IF_NO_CULPRIT, IF_BY_HABIT = 0.5, 0.6, 0.6, 0.7
"""Confidence instead. `IF_BY_HABIT`: only the culprit's own earlier calls show that it is wrong."""
ONLY_IF_BLOCKED = (Kind.BEHIND, Kind.AHEAD, Kind.SITE, Kind.DEADLOCK)
"""No fault unless the job is blocked."""


def _find_mismatch(measures: Measures, _: Limits) -> Iterable[Finding]:
    divergence = measures.divergence
    if divergence is None or divergence.kind is Kind.BEHIND:
        return
    if not _are_all_blocked_elsewhere(measures, divergence):
        yield _report(
            measures,
            divergence,
            "hang-collective-mismatch",
            replaces=("hang-collective-mismatch", "hang-rank-behind"),
        )


def find_rank_behind(measures: Measures, _: Limits) -> Iterable[Finding]:
    """`hang-rank-behind` by the flight recorder. Silent if stacks show what the rank is doing, or
    if it has ended."""
    divergence, hang = measures.divergence, measures.hang
    if divergence is None or divergence.kind is not Kind.BEHIND:
        return
    if hang is not None and hang.kind in (HangKind.BEHIND, HangKind.ABSENT):
        return
    ended = {rank.rank for rank in measures.case.ranks if rank.state in (State.DEAD, State.EXITED)}
    if not ended & set(divergence.culprits):
        yield _report(measures, divergence, "hang-rank-behind")


def _report(
    measures: Measures, divergence: Divergence, code: str, replaces: tuple[str, ...] = ()
) -> Finding:
    return Finding(
        code=code,
        severity=_severity(divergence),
        confidence=_confidence(divergence),
        title=write_title(divergence),
        cause=describe_cause(divergence),
        culprits=tuple(_find_culprit(measures, rank) for rank in divergence.culprits),
        victims=_find_victims(divergence),
        evidence=(*_call_rows(divergence), *_count_rows(divergence)),
        since_step=_since_step(measures, divergence),
        fixes=suggest_fixes(divergence),
        replaces=replaces,
    )


def _find_victims(divergence: Divergence) -> tuple[int, ...]:
    """The ranks that wait. If it is unknown which side is wrong, a side that waits is no victim of
    a side that does not."""
    waiting = {*divergence.expecting, *divergence.waiting} - set(divergence.culprits)
    sides = {*divergence.expecting, *divergence.deviating}
    if not divergence.culprits and not sides <= waiting:
        waiting -= sides
    return tuple(sorted(waiting))


def _are_all_blocked_elsewhere(measures: Measures, divergence: Divergence) -> bool:
    """Whether the dumps leave open why ranks made no such call, and stacks show that all of them
    are blocked."""
    hang = measures.hang
    if divergence.culprits or hang is None or hang.kind is not HangKind.BEHIND:
        return False
    blocked = {progress.state.rank for progress in hang.culprits}
    return set(divergence.deviating) == blocked and not any(divergence.deviating.values())


def _severity(divergence: Divergence) -> Severity:
    if divergence.kind in ONLY_IF_BLOCKED:
        return Severity.CRITICAL if divergence.is_blocked else Severity.INFO
    return Severity.WARNING if ranks_went_on(divergence) else Severity.CRITICAL


def _confidence(divergence: Divergence) -> float:
    if divergence.kind in ONLY_IF_BLOCKED and not divergence.is_blocked:
        return IF_PERHAPS_NOT_BLOCKED
    if divergence.kind is Kind.BEHIND and set(divergence.culprits) & set(divergence.missing):
        return IF_CULPRIT_LEFT_NO_DUMP
    if divergence.kind is not Kind.DEADLOCK and not divergence.culprits:
        return IF_NO_CULPRIT
    return IF_BY_HABIT if divergence.by_routine else CONFIDENCE[divergence.kind]


def _since_step(measures: Measures, divergence: Divergence) -> int | None:
    """The last step that a waiting rank finished, by the black boxes."""
    if not divergence.is_blocked:
        return None
    waiting = [measures.rank(rank) for rank in divergence.waiting]
    steps = [rank.last_step for rank in waiting if rank is not None]
    return min((step for step in steps if step is not None), default=None)


def _call_rows(divergence: Divergence) -> Iterable[Evidence]:
    """The expected call, and what the other ranks called instead."""
    expected = divergence.expected
    if expected is not None and divergence.expecting:
        yield _call_row(format_ranks(divergence.expecting), expected, other_call(divergence))
    if divergence.kind is Kind.DEADLOCK and expected is not None and divergence.culprits:
        yield _call_row(f"rank {divergence.culprits[0]} before, always", expected, None)
    for rank, call in list(divergence.deviating.items())[:MOST_ROWS]:
        if call is None:
            left_no_dump = rank in divergence.missing
            value = "left no dump" if left_no_dump else "no such call"
            yield Evidence(f"rank {rank}", value, "text", None, SOURCE)
        else:
            is_ring = divergence.kind is Kind.DEADLOCK
            group = f", {format_group(call.group)}" if is_ring else ""
            yield _call_row(f"rank {rank}{group}", call, expected)


def _call_row(who: str, call: Collective, other: Collective | None) -> Evidence:
    place = innermost_difference(call, other)
    shapes = " ".join(str(list(shape)) for shape in call.inputs[:3])
    dtypes = ", ".join(dict.fromkeys(call.dtypes))
    value = " ".join(f"{call.operation} {shapes} {dtypes}".split())
    where = format_place(place, full_path=True) if place else None
    return Evidence(who, value, "text", None, SOURCE, where)


def _count_rows(divergence: Divergence) -> Iterable[Evidence]:
    name = f"matching collectives of {format_group(divergence.group)} before"
    yield Evidence(name, divergence.agreed, "collectives", None, SOURCE)
    if divergence.seconds is not None:
        seconds = round(divergence.seconds, 1)
        yield Evidence("time blocked when it was dumped", seconds, "s", None, SOURCE)
    if divergence.missing:
        named = ", ".join(map(str, divergence.missing[:MOST_NAMED]))
        yield Evidence("ranks without a dump", named, "ranks", None, SOURCE)


def _find_culprit(measures: Measures, rank: int) -> Culprit:
    """The rank, with host and pid from its dump if the case does not know them."""
    known = culprit_of(measures, rank)
    flight = next((flight for flight in measures.case.flights if flight.rank == rank), None)
    if known.pid is not None or flight is None:
        return known
    return Culprit(rank, known.host or flight.host, known.device, flight.pid)


RULES: tuple[Rule, ...] = (
    Rule(
        code="hang-collective-mismatch",
        family="hang",
        summary="Ranks wait in different collectives, or in one collective with different shapes, "
        "types or call sites.",
        measured="torch's flight recorder keeps the last 2,000 collectives of each rank. The dumps "
        "are aligned by group and sequence number and compared in operation, sizes, types and call "
        "site. A rank that skips one call pairs all later calls with the wrong partners, which can "
        "go unnoticed for long: the finding is traced back to the first divergence, not to the "
        "time-out. If ranks wait for each other across groups, the chain is followed to a rank "
        "that waits for no one, or to a ring. Without dumps, the stacks show it: all ranks wait in "
        "collectives, but in different ones.",
        thresholds="A different operation, type or number of elements under one sequence number is "
        "a fault if torch requires them to be equal; a different call site alone is not. A rank is "
        "blamed if more than half of the group agree against it, or if the call that it skipped "
        f"had always been there before. A delay counts from {LEAST_WAIT:.0f} s and {GAPS:.0f} "
        "times the longest usual pause on, or 15 s later if call stacks were dumped, because torch "
        "needs that long to look up their names. By stacks, a single rank is blamed against at "
        f"least {MAJORITY} that agree ({MAJORITY_BY_PLACE} if only the places differ), in a job "
        "without smaller groups; otherwise both places are reported.",
        fixes="Call each collective on all ranks of its group, in the same order and with equal "
        "sizes: decide on one rank, broadcast the decision, then branch.",
        examine=_find_mismatch,
        needs=("divergence",),
        alternatives=(
            Detector(find_split_hang),
            SPLIT_WAIT,
            log_detector("hang-collective-mismatch"),
        ),
        unverified="NCCL's dumps: read by the format in torch's source, seen with gloo only.",
    ),
)
