"""A rank whose own work is slower than the others', step after step; they wait for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.analysis.stacks.stack_sampling import Work
from mgpu_doctor.analysis.stragglers.persistent_stragglers import Straggler
from mgpu_doctor.case.birth import hands_on
from mgpu_doctor.case.model import Rank
from mgpu_doctor.findings import Cost, Evidence, Finding, Fix, Predicted
from mgpu_doctor.formatting import format_ranks, format_seconds
from mgpu_doctor.rules.blame import culprit_of, severity_of_cost
from mgpu_doctor.rules.rule import Limit, Limits, Rule
from mgpu_doctor.rules.slow import by_stacks
from mgpu_doctor.rules.slow.reasons import said

Examine = Callable[[Measures, Limits], Iterable[Finding]]

FAMILIES = {
    "input": ("input",),
    "compute": ("transfer", "forward", "backward"),
    "optimizer": ("optimizer",),
    "other": ("other", "checkpoint", "evaluation"),
}
INPUT_SHARE = 0.8
"""Input names the cause alone where it explains this share of the gap; below that it does only if
nothing else explains more."""
WAKE = 0.1
"""Of what mending the worst straggler saves: with less, a further one may be in its wake, as a rank
that shares its pipeline or its cores, and is told when it is still there afterwards. A choice."""
COST = Limit(
    "cost",
    0.01,
    "fraction",
    "share of the step time that mending the rank saves, from which it is worth a line; a warning "
    "from 5 % (what most people would not miss is told, what costs a twentieth disturbs).",
)

THRESHOLDS = (
    "Its own work exceeds the median of the other ranks, paired step by step, by at least 2 % of "
    "the step (3 % with two ranks) on at least 70 % of the steps; Yuen's trimmed mean with "
    "autocorrelation-aware error must pass a limit that grows with the number of ranks and the "
    "length of the job (benchmarks/detection.py); at least 20 compared steps; both halves agree; "
    "the other ranks wait longer than the culprit by at least half the excess; and the excess is "
    "at least 1.5 times the usual difference among the others (more where they are few). From 32 "
    "ranks on, all of them together tell what is usual, and a rise of five steps can decide: the "
    "limit is that of a likelihood-ratio scan looked at after every step (Siegmund & Venkatraman "
    "1995)."
)
MEASURED = (
    "Steps of all ranks are joined by collective sequence number. Own work is the step without "
    "the time spent in collectives; the culprit is the rank that works longest and waits least "
    "(never the one whose step or collective looks longest). {phases}"
)


def shares(one: Straggler) -> dict[str, float]:
    """Family -> share of the rank's excess that the family's phases explain."""
    gap = max(one.excess, 1e-12)
    return {
        family: sum(one.by_phase.get(phase) or 0.0 for phase in phases) / gap
        for family, phases in FAMILIES.items()
    }


def family_of(one: Straggler) -> str:
    """The family of phases that explains a straggler's excess best."""
    explained = shares(one)
    if explained["input"] >= INPUT_SHARE:
        return "input"
    return max(explained, key=lambda family: explained[family])


def of_family(measures: Measures, family: str, limits: Limits) -> list[Straggler]:
    """The stragglers of one family that are worth a line, the worst first."""
    stragglers = measures.stragglers or ()
    least = max([limits["cost"], *(WAKE * one.saved for one in stragglers)])
    return [one for one in stragglers if one.saved >= least and family_of(one) == family]


def straggler_finding(
    measures: Measures,
    one: Straggler,
    *,
    code: str,
    what: str,
    phases: Iterable[str],
    cause: str,
    fixes: list[Fix],
    longer: float | None = None,
) -> Finding:
    """The finding that all straggler rules share; `what` takes longer: by what `phases` do, or by
    `longer` seconds."""
    if longer is None:
        longer = sum(one.by_phase.get(phase) or 0.0 for phase in phases)
    named = {other.rank for other in measures.stragglers or ()}
    victims = tuple(rank for rank in _compared(measures) if rank not in named)
    gains = Predicted(
        step_time_ratio=1 - one.saved,
        memory_bytes=None,
        basis=f"measured what-if: the same steps with this rank's own work at "
        f"{_reference(measures, one).level}",
    )
    since = "from the start" if one.since is None else f"since step {one.since}"
    if one.since_before is not None:
        since = f"since before step {one.since_before}"
    return Finding(
        code=code,
        severity=severity_of_cost(one.saved),
        confidence=round(min(0.99, max(0.5, one.positive)), 2),
        title=f"Rank {one.rank} holds the others up: {what} takes {format_seconds(longer)} a step "
        f"longer than {_reference(measures, one).where}, {since}",
        cause=f"{cause} {said(measures, one.rank)}".strip(),
        culprits=(culprit_of(measures, one.rank),),
        victims=victims,
        evidence=_evidence(measures, one),
        since_step=one.since if one.since is not None else 0,
        cost=Cost(step_fraction=one.saved, seconds_per_step=one.saved * one.step_seconds),
        fixes=tuple(Fix(fix.id, fix.summary, fix.how, fix.predicted or gains) for fix in fixes),
    )


def _evidence(measures: Measures, one: Straggler) -> tuple[Evidence, ...]:
    joined_by = measures.joined.joined_by if measures.joined else ""
    source = f"{one.steps} steps joined by {joined_by}"
    where = f"rank {one.rank}"
    level = _reference(measures, one).level
    facts = [
        Evidence(
            f"own work a step, against {level}",
            one.own,
            "s",
            one.own_of_others,
            source,
            where,
        ),
        Evidence(
            f"time in collectives a step, against {level}",
            one.standing,
            "s",
            one.standing_of_others,
            source,
            where,
        ),
        Evidence(
            f"share of steps in which it was slower than {level}",
            one.positive,
            "fraction",
            0.5,
            source,
            where,
        ),
    ]
    floor = 0.1 * one.excess
    for phase, extra in sorted(one.by_phase.items(), key=lambda item: -(item[1] or 0.0)):
        if extra is not None and extra >= floor:
            facts.append(Evidence(f"{phase} beyond {level}", extra, "s", 0.0, source, where))
    return tuple(facts)


def _biggest(one: Straggler, family: str) -> str:
    return max(FAMILIES[family], key=lambda phase: one.by_phase.get(phase) or 0.0)


def _compute(measures: Measures, limits: Limits) -> Iterable[Finding]:
    for one in of_family(measures, "compute", limits):
        parts = {p: one.by_phase.get(p) or 0.0 for p in FAMILIES["compute"]}
        both = min(parts["forward"], parts["backward"]) >= 0.2 * one.excess
        phase = "forward and backward" if both else _biggest(one, "compute")
        how = f"Look at what only it does there (`if rank == {one.rank}`, hooks, larger batches)."
        if hands_on(measures.rank(one.rank)):
            how = (
                "Count what all_to_all hands each rank: a router that prefers its experts gives it "
                "more to compute (a balancing loss or a capacity evens that out)."
            )
        elif both:
            how = (
                "Both passes are slower, so the place is to blame before the code: compare clocks, "
                "load and temperature of that rank's device and host with the others', and "
                "its batch (samples, sequence length)."
            )
        how += f"\n{_compare_stacks(measures, one)}"
        what = f"its {phase} pass" if phase != "transfer" else "its host-to-device transfer"
        cause = f"The rank's own {phase} work is slower than {_reference(measures, one).ranks}"
        if phase == "forward" and _has_bare_loop(measures.rank(one.rank)):
            what = "its forward pass, or what runs between steps,"
            cause += " (with no module, optimizer or loader nothing tells where forward begins)"
        yield straggler_finding(
            measures,
            one,
            code="straggler-compute",
            what=what,
            phases=("forward", "backward") if both else (phase,),
            cause=f"{cause}.",
            fixes=[Fix("mend-rank", f"Find what slows rank {one.rank}'s {phase} work", how)],
        )


def _has_bare_loop(rank: Rank | None) -> bool:
    """Whether only backward passes or collectives showed where the rank's steps are."""
    return rank is not None and rank.birth.get("step_sign") in ("backward", "collective")


def _optimizer(measures: Measures, limits: Limits) -> Iterable[Finding]:
    for one in of_family(measures, "optimizer", limits):
        yield straggler_finding(
            measures,
            one,
            code="straggler-optimizer",
            what="its optimizer step",
            phases=FAMILIES["optimizer"],
            cause="The optimizer step of this rank takes longer than "
            f"{_reference(measures, one).ranks}: work that only this rank does in `step()`, its "
            "hooks or gradient clipping, or a larger share of a sharded optimizer.",
            fixes=[
                Fix(
                    "mend-optimizer",
                    "Take the extra work out of the optimizer step",
                    "Look for rank-dependent code around `optimizer.step()` (hooks, logging of "
                    "norms, EMA copies); with ZeRO or ZeroRedundancyOptimizer give every rank an "
                    "equal share of the parameters.",
                )
            ],
        )


def _other(measures: Measures, limits: Limits) -> Iterable[Finding]:
    for one in of_family(measures, "other", limits):
        phase = _biggest(one, "other")
        place = "outside every phase" if phase == "other" else f"in {phase}"
        only = f"`if rank == {one.rank}`"
        yield straggler_finding(
            measures,
            one,
            code="straggler-other",
            what=f"its time {place}",
            phases=(phase,),
            cause=f"This rank, unlike {_others(measures, one)}, does something {place} (between "
            "steps, or in Python around the model): logging, metrics, saving, `.item()` or "
            "printing.",
            fixes=[
                Fix(
                    "move-work",
                    "Do that work less often, or beside the training",
                    f"Search the training loop for what only this rank does ({only}): do it every "
                    "100th step (`if step % 100 == 0:`), or hand it to a background thread.\n"
                    f"{_compare_stacks(measures, one)}",
                )
            ],
        )


def _compare_stacks(measures: Measures, one: Straggler) -> str:
    """What to type to see which lines differ from those of a rank that is well."""
    well = next((rank for rank in _compared(measures) if rank != one.rank), None)
    lines = []
    for number in (one.rank, well):
        rank = None if number is None else measures.rank(number)
        pid = "PID" if rank is None or rank.pid is None else rank.pid
        lines.append(f"py-spy record --pid {pid} --duration 30 -o rank{number}.svg")
    return "While it runs, compare where the time goes:\n" + "\n".join(lines)


def _compared(measures: Measures) -> tuple[int, ...]:
    return measures.joined.ranks if measures.joined else ()


@dataclass(frozen=True, slots=True)
class _Reference:
    """With what a straggler was compared, in the words of a title, of evidence and of a cause."""

    where: str
    level: str
    ranks: str


def _reference(measures: Measures, one: Straggler) -> _Reference:
    structure = measures.structure
    equals = {rank for stage in structure.stages if one.rank in stage for rank in stage}
    if len(equals) > 1:
        stage = structure.roles[one.rank]
        return _Reference(
            "on the other ranks of its pipeline stage",
            "the median of the other ranks of its pipeline stage",
            f"on {format_ranks(equals - {one.rank})}, which hold the same pipeline stage {stage}",
        )
    if equals and one.since is not None:
        return _Reference("before", "what it was before", "it was before")
    return _Reference(
        "on the other ranks", "the median of the other ranks", f"on {_others(measures, one)}"
    )


def _others(measures: Measures, one: Straggler) -> str:
    return format_ranks(rank for rank in _compared(measures) if rank != one.rank)


def _rule(
    code: str,
    summary: str,
    phases: str,
    fixes: str,
    examine: Examine,
    *also: Examine,
) -> Rule:
    return Rule(
        code=code,
        family="slow",
        summary=summary,
        measured=MEASURED.format(phases=phases) + (f" {by_stacks.MEASURED}" if also else ""),
        thresholds=THRESHOLDS,
        fixes=fixes,
        examine=examine,
        also=also,
        needs=("stragglers",),
        limits=(COST,),
    )


RULES = (
    _rule(
        "straggler-compute",
        "A rank's forward or backward pass, or its host-to-device copy, is slower on every step, "
        "and all other ranks wait for it.",
        "This code is given where transfer, forward and backward explain most of the excess.",
        "If one pass is slow, look at code that only this rank runs. If all of its work is slow, "
        "look at its device and host: clocks, temperature, a neighbour on its cores, its batch.",
        _compute,
        by_stacks.examine(Work.COMPUTE),
    ),
    _rule(
        "straggler-optimizer",
        "A rank's optimizer step is slower on every step, and all other ranks wait for it.",
        "This code is given where the optimizer phase explains most of the excess.",
        "Take rank-dependent work out of the optimizer step; balance a sharded optimizer.",
        _optimizer,
    ),
    _rule(
        "straggler-other",
        "A rank spends time outside of every phase (logging, metrics, saving, Python between "
        "steps) on every step, and all other ranks wait for it.",
        "This code is given where time outside of input, compute and optimizer explains most of "
        "the excess.",
        "Do that work every N steps, on all ranks alike, or in a background thread.",
        _other,
        by_stacks.examine(Work.OTHER),
    ),
)
