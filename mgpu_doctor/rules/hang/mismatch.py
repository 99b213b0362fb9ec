"""The ranks' collectives part: who called what where, by torch's flight recorder."""

from __future__ import annotations

from collections.abc import Iterable

from mgpu_doctor.analysis.collectives.collective_waits import GAPS, LEAST_WAIT
from mgpu_doctor.analysis.collectives.divergence import Divergence, Kind
from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.analysis.stacks.hang_analysis import Kind as Stand
from mgpu_doctor.case.flights import Collective
from mgpu_doctor.case.model import State
from mgpu_doctor.findings import Culprit, Evidence, Finding, Severity
from mgpu_doctor.formatting import format_ranks
from mgpu_doctor.rules.blame import culprit_of
from mgpu_doctor.rules.falls.falls import last_step
from mgpu_doctor.rules.hang.mismatch_text import (
    cause,
    fixes,
    goes_on,
    group_name,
    other_call,
    place_of,
    spot,
    title,
)
from mgpu_doctor.rules.rule import Limits, Rule

SOURCE = "flight recorder"
ROWS = 4
UNKNOWN_TIME, UNDECIDED, UNDUMPED = 0.5, 0.6, 0.6
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
BY_ROUTINE = 0.7
DELAYS = (Kind.BEHIND, Kind.AHEAD, Kind.SITE, Kind.DEADLOCK)
"""What is a fault only where the job stands."""


def _examine(measures: Measures, _: Limits) -> Iterable[Finding]:
    found = measures.divergence
    if found is None or (found.kind is Kind.BEHIND and _told_better(measures, found)):
        return
    if _held_up(measures, found):
        return
    late = found.kind is Kind.BEHIND
    yield Finding(
        code="hang-rank-behind" if late else "hang-collective-mismatch",
        severity=_severity(found),
        confidence=_confidence(found),
        title=title(found),
        cause=cause(found),
        culprits=tuple(_culprit(measures, rank) for rank in found.culprits),
        victims=_victims(found),
        evidence=(*_calls(found), *_counts(found)),
        since_step=_since(measures, found),
        fixes=fixes(found),
        replaces=() if late else ("hang-collective-mismatch", "hang-rank-behind"),
    )


def _victims(found: Divergence) -> tuple[int, ...]:
    """Where it is open who is wrong, no party that waits stands as the victim of one that does
    not."""
    waiting = {*found.expecting, *found.waiting} - set(found.culprits)
    parties = {*found.expecting, *found.deviating}
    if not found.culprits and not parties <= waiting:
        waiting -= parties
    return tuple(sorted(waiting))


def _told_better(measures: Measures, found: Divergence) -> bool:
    """Stacks tell what the rank does instead; a rank that has ended is no rank that is late."""
    standing = measures.standing
    if standing is not None and standing.kind in (Stand.BEHIND, Stand.ABSENT):
        return True
    ended = {rank.rank for rank in measures.case.ranks if rank.state in (State.DEAD, State.EXITED)}
    return bool(ended & set(found.culprits))


def _held_up(measures: Measures, found: Divergence) -> bool:
    """The dumps leave open whether those without such a call are held up: by their stacks they are,
    all of them."""
    standing = measures.standing
    if found.culprits or standing is None or standing.kind is not Stand.BEHIND:
        return False
    held = {one.posture.rank for one in standing.culprits}
    return {rank for rank, entry in found.deviating.items()} == held and not any(
        found.deviating.values()
    )


def _severity(found: Divergence) -> Severity:
    if found.kind in DELAYS:
        return Severity.CRITICAL if found.stands else Severity.INFO
    return Severity.WARNING if goes_on(found) else Severity.CRITICAL


def _confidence(found: Divergence) -> float:
    if found.kind in DELAYS and not found.stands:
        return UNKNOWN_TIME
    if found.kind is Kind.BEHIND and set(found.culprits) & set(found.missing):
        return UNDUMPED
    if found.kind is not Kind.DEADLOCK and not found.culprits:
        return UNDECIDED
    return BY_ROUTINE if found.by_routine else CONFIDENCE[found.kind]


def _since(measures: Measures, found: Divergence) -> int | None:
    """The last step that a rank which waits has finished, where black boxes tell it."""
    if not found.stands:
        return None
    waiting = [measures.rank(rank) for rank in found.waiting]
    steps = [last_step(rank) for rank in waiting if rank is not None]
    return min((step for step in steps if step is not None), default=None)


def _calls(found: Divergence) -> Iterable[Evidence]:
    """The two places: what was expected, and what the others called."""
    if found.expected is not None and found.expecting:
        yield _call(format_ranks(found.expecting), found.expected, other_call(found))
    if found.kind is Kind.DEADLOCK and found.expected is not None and found.culprits:
        yield _call(f"rank {found.culprits[0]} before, always", found.expected, None)
    for rank, entry in list(found.deviating.items())[:ROWS]:
        if entry is None and rank in found.missing:
            yield Evidence(f"rank {rank}", "left no dump", "text", None, SOURCE)
        elif entry is None:
            yield Evidence(f"rank {rank}", "no such call", "text", None, SOURCE)
        else:
            group = f", {group_name(entry.group)}" if found.kind is Kind.DEADLOCK else ""
            yield _call(f"rank {rank}{group}", entry, found.expected)


def _call(who: str, entry: Collective, against: Collective | None) -> Evidence:
    place = place_of(entry, against)
    shapes = " ".join(str(list(shape)) for shape in entry.inputs[:3])
    kinds = ", ".join(dict.fromkeys(entry.dtypes))
    said = f"{entry.operation} {shapes} {kinds}".strip()
    where = spot(place, whole=True) if place else None
    return Evidence(who, " ".join(said.split()), "text", None, SOURCE, where)


def _counts(found: Divergence) -> Iterable[Evidence]:
    name = f"collectives of {group_name(found.group)} before"
    yield Evidence(name, found.agreed, "collectives", None, SOURCE)
    if found.seconds is not None:
        yield Evidence("stood when it was dumped", round(found.seconds, 1), "s", None, SOURCE)
    if found.missing:
        named = ", ".join(map(str, found.missing[:16]))
        yield Evidence("ranks without a dump", named, "ranks", None, SOURCE)


def _culprit(measures: Measures, rank: int) -> Culprit:
    """With what the dump itself tells of the process where the case knows no more."""
    known = culprit_of(measures, rank)
    flight = next((one for one in measures.case.flights if one.rank == rank), None)
    if known.pid is not None or flight is None:
        return known
    return Culprit(rank, known.host or flight.host, known.device, flight.pid)


RULES: tuple[Rule, ...] = (
    Rule(
        code="hang-collective-mismatch",
        family="hang",
        summary="Ranks wait in different collectives, or in one with other shapes, types or "
        "places in the code.",
        measured="torch's flight recorder keeps the last 2,000 collectives of each rank. The dumps "
        "are laid side by side, by group and sequence number, and compared in operation, sizes, "
        "types and call site. A rank that left out one call pairs all later ones with wrong "
        "partners, which may go well for long: what stands is traced back to where its calls "
        "began to be shifted, so that the first divergence is told, not the time-out. Ranks that "
        "wait for each other across groups are followed to whoever waits for nobody, or to a ring.",
        thresholds="Other operation, type or number of elements under one sequence number is a "
        "fault wherever torch requires them to be equal; another call site alone is none. Who is "
        "wrong is said where more than half of the group agree, or where what a rank left out had "
        "always been called there before. Mere delay counts from "
        f"{LEAST_WAIT:.0f} s and {GAPS:.0f} times the longest usual pause on, and where call "
        "stacks were dumped, 15 s later: looking up their names takes torch so long.",
        fixes="Call each collective on all ranks of its group, in one order, with equal sizes: "
        "decide on one rank, tell the others by a broadcast, then branch.",
        examine=_examine,
        needs=("divergence",),
        unverified="NCCL's dumps: read by the format in torch's source, seen with gloo only.",
    ),
)
