"""What all findings about a rank that is slow in every step have in common."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from mgpu_doctor.analysis.machines.cpu_contention import CROWDED, UNSEEN
from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.analysis.stragglers.persistent_stragglers import BRIEF, PASSING, Straggler
from mgpu_doctor.analysis.stragglers.straggler_causes import DECIDES, HOST, Cause
from mgpu_doctor.findings import Cost, Evidence, Finding, Fix, PhaseExcess, Predicted, Severity
from mgpu_doctor.formatting import format_ranks, format_seconds, format_share
from mgpu_doctor.rules.culprits import culprit_of, severity_of_cost
from mgpu_doctor.rules.rule import Limit, Limits

FAMILIES = {
    "input": ("input",),
    "compute": ("transfer", "forward", "backward"),
    "optimizer": ("optimizer",),
    "other": ("other", "checkpoint", "evaluation"),
}
MAY_WAIT_FOR_CORES = (
    " Other processes used the cores of the host, so the rank may only have waited for a core: "
    "repeat the run for longer, or on a quiet host."
)
INPUT_SHARE = 0.8
"""Input is the cause if it explains this share of the excess, or if nothing explains more."""
WAKE = 0.1
"""Share of what fixing the worst straggler saves. A rank below it may be slow only because of the
worst one, whose pipeline or cores it shares, so it is reported only if it is still slow later."""
COST = Limit(
    "cost",
    0.01,
    "fraction",
    "minimum share of the step time that fixing the rank would save; warning from 5 % (a choice).",
)

THRESHOLDS = (
    "All of these must hold. At least 20 steps are compared. Own work exceeds the median of the "
    "other ranks, paired by step, by at least 2 % of the step (3 % with two ranks) in at least 70 "
    "% of the steps. Both halves of the steps agree. The excess is statistically significant "
    "(Yuen's trimmed mean with an error that accounts for autocorrelation; the limit grows with "
    "the number of ranks and the length of the job, benchmarks/detection.py). The other ranks wait "
    "longer than the culprit by at least half the excess. The excess is at least 1.5 times the "
    "usual difference among the others, or more if they are few. With fewer than 32 ranks, the "
    f"excess lasts for {PASSING:g} s, or is at least half of the others' work and adds up to "
    f"{BRIEF:g} s (tests/doctor/rules/test_busy_hosts.py). From 32 ranks on, the statistics "
    "of all ranks are used, and five slow steps can be enough: the limit is that of a "
    "likelihood-ratio scan evaluated after every step (Siegmund & Venkatraman 1995). It is only a "
    "note if the rank may have waited for a core for half of the excess: the run was too short to "
    "measure that, and other processes used the cores that long while none was free (at any time "
    f"if {format_share(CROWDED)} of the cores were busy on average; else as often as by chance)."
)
MEASURED = (
    "Steps of all ranks are joined by collective sequence number. Own work is the step without the "
    "time spent in collectives. The culprit is the rank that works longest and waits least, never "
    "the one whose step or collective looks longest. {phases}"
)


def shares(straggler: Straggler) -> dict[str, float]:
    """Family -> share of the rank's excess that the family's phases explain."""
    gap = max(straggler.excess, 1e-12)
    return {
        family: sum(straggler.by_phase.get(phase) or 0.0 for phase in phases) / gap
        for family, phases in FAMILIES.items()
    }


def family_of(straggler: Straggler) -> str:
    """The family of phases that explains a straggler's excess best."""
    explained = shares(straggler)
    if explained["input"] >= INPUT_SHARE:
        return "input"
    return max(explained, key=lambda family: explained[family])


def of_family(measures: Measures, family: str, limits: Limits) -> list[Straggler]:
    """The stragglers of one family that cost enough to report, the worst first."""
    stragglers = measures.stragglers or ()
    least = max([limits["cost"], *(WAKE * straggler.saved for straggler in stragglers)])
    return [
        straggler
        for straggler in stragglers
        if straggler.saved >= least and family_of(straggler) == family
    ]


def straggler_finding(
    measures: Measures,
    straggler: Straggler,
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
        longer = sum(straggler.by_phase.get(phase) or 0.0 for phase in phases)
    named = {other.rank for other in measures.stragglers or ()}
    victims = tuple(rank for rank in compared_ranks(measures) if rank not in named)
    gains = Predicted(
        step_time_ratio=1 - straggler.saved,
        memory_bytes=None,
        basis=f"measured what-if: the same steps with this rank's own work at "
        f"{reference_of(measures, straggler).level}",
    )
    by_host = _may_be_hosts(measures, straggler)
    since = "from the first step" if straggler.since is None else f"from step {straggler.since} on"
    if straggler.since_before is not None:
        since = f"from before step {straggler.since_before}"
    return Finding(
        code=code,
        severity=Severity.INFO if by_host else severity_of_cost(straggler.saved),
        confidence=round(min(0.99, max(0.5, straggler.positive)), 2),
        title=f"Rank {straggler.rank} is slowing down the other ranks: {what} takes "
        f"{format_seconds(longer)} longer per step than {reference_of(measures, straggler).where}, "
        f"{since}",
        cause=f"{cause} {describe_causes(measures, straggler.rank)}".strip()
        + (MAY_WAIT_FOR_CORES if by_host else ""),
        culprits=(culprit_of(measures, straggler.rank),),
        victims=victims,
        evidence=_evidence(measures, straggler),
        since_step=straggler.since if straggler.since is not None else 0,
        cost=Cost(
            step_fraction=straggler.saved, seconds_per_step=straggler.saved * straggler.step_seconds
        ),
        fixes=tuple(Fix(fix.id, fix.summary, fix.how, fix.predicted or gains) for fix in fixes),
        ruled_out=_list_names(list_ruled_out(measures, straggler.rank)),
        not_measured=_list_names(list_unmeasured(measures, straggler.rank)),
    )


def _may_be_hosts(measures: Measures, straggler: Straggler) -> bool:
    """Whether the rank may only have waited for a core: other processes used those of its host for
    long enough, the run was too short to measure the wait, and the rank did not compute longer than
    the others."""
    joined, rank = measures.joined, straggler.rank
    around = measures.surroundings.get(rank, UNSEEN)
    if joined is None or joined.is_device_timed:
        return False  # a device waits for no core
    possible = measures.possible_waits.get(rank, 0.0) * straggler.step_seconds
    if around.queueing is not None or possible < DECIDES * straggler.excess:
        return False
    column = joined.ranks.index(rank)
    ran = np.median(joined.running, axis=0)
    others = np.median(np.delete(ran, column)) if len(ran) > 1 else 0.0
    return not ran[column] - others >= DECIDES * straggler.excess


def _evidence(measures: Measures, straggler: Straggler) -> tuple[Evidence, ...]:
    joined_by = measures.joined.joined_by if measures.joined else ""
    source = f"{straggler.steps} steps joined by {joined_by}"
    where = f"rank {straggler.rank}"
    level = reference_of(measures, straggler).level
    facts = [
        Evidence(
            f"own work per step, compared with {level}",
            straggler.own,
            "s",
            straggler.own_of_others,
            source,
            where,
        ),
        Evidence(
            f"time in collectives per step, compared with {level}",
            straggler.in_collectives,
            "s",
            straggler.in_collectives_of_others,
            source,
            where,
        ),
        Evidence(
            f"share of steps in which it was slower than {level}",
            straggler.positive,
            "fraction",
            0.5,
            source,
            where,
        ),
    ]
    floor = 0.1 * straggler.excess
    for phase, extra in sorted(straggler.by_phase.items(), key=lambda item: -(item[1] or 0.0)):
        if extra is not None and extra >= floor:
            excess = PhaseExcess(straggler.rank, phase)
            measure = f"{phase} in excess of {level}"
            facts.append(Evidence(measure, extra, "s", 0.0, source, where, excess))
    return tuple(facts)


def compared_ranks(measures: Measures) -> tuple[int, ...]:
    return measures.joined.ranks if measures.joined else ()


@dataclass(frozen=True, slots=True)
class Reference:
    """What a straggler was compared with, in words for a title, for evidence and for a cause."""

    where: str
    level: str
    ranks: str


def reference_of(measures: Measures, straggler: Straggler) -> Reference:
    structure = measures.structure
    equals = {rank for stage in structure.stages if straggler.rank in stage for rank in stage}
    if len(equals) > 1:
        stage = structure.roles[straggler.rank]
        return Reference(
            "on the other ranks of its pipeline stage",
            "the median of the other ranks of its pipeline stage",
            f"on {format_ranks(equals - {straggler.rank})}, which hold the same pipeline stage "
            f"{stage}",
        )
    if equals and straggler.since is not None:
        return Reference("before", "what it was before", "it was before")
    return Reference(
        "on the other ranks",
        "the median of the other ranks",
        f"on {other_ranks(measures, straggler)}",
    )


def other_ranks(measures: Measures, straggler: Straggler) -> str:
    return format_ranks(rank for rank in compared_ranks(measures) if rank != straggler.rank)


@dataclass(frozen=True, slots=True)
class ForwardWork:
    """What the phase `forward` holds, in words."""

    what: str = "its forward pass"
    caveat: str = ""
    """What to add to a sentence about it."""
    how: str = ""
    """What to add to a fix: how to find out more. Begins with a space."""


FORWARD_PASS = ForwardWork()
UNSEEN_INPUT = ForwardWork(
    "what it does between the start of forward and the start of backward",
    ": the model, the loss, and whatever else happens before backward. No data loader was seen, so "
    "a batch that the script fetches there is part of it",
    ' `with mgpu_doctor.phase("input"):` around the lines that fetch a batch shows how long they '
    "take.",
)
BARE_LOOP = ForwardWork(
    "its forward pass, or what runs between steps,",
    " (without a module, optimizer or loader, the start of forward is unknown)",
    UNSEEN_INPUT.how,
)


def describe_forward(measures: Measures, rank: int) -> ForwardWork:
    """What a rank's forward phase holds. In a bare loop only backward passes or collectives showed
    where its steps are. Elsewhere a script may fetch its batches between forward and backward if no
    hook saw it fetch them, and if a step has one forward and one backward pass, other than in a
    pipeline."""
    known = measures.rank(rank)
    if known is None:
        return FORWARD_PASS
    if known.metadata.step_sign in ("backward", "collective"):
        return BARE_LOOP
    sees_input = known.metadata.loaders or (measures.input_shares or {}).get(rank)
    return FORWARD_PASS if sees_input or measures.stages is not None else UNSEEN_INPUT


NOTHING = 0.2
"""Share of the excess below which a cause is ruled out."""

NAMES = {
    "data": "more data",
    "gc": "garbage collection",
    "checkpoint": "saving",
    "evaluation": "evaluation",
    "host-contended": "contention for its cores",
    "host-throttled": "its CPU quota",
    "host-cores": "fewer cores",
    "host-paging": "memory reallocated in every step",
    "idle": "sleep or I/O",
}
EXPLAINED = {
    "data": "its batches are larger than the others' (samples or tokens), which explains {}",
    "gc": "Python's garbage collector explains {}",
    "checkpoint": "saving explains {}",
    "evaluation": "evaluation explains {}",
    "host-contended": "its main thread waited for a core for {}",
    "host-throttled": "its control group was out of CPU quota for {}",
    "host-cores": "its threads have fewer cores, which explains {}",
    "host-paging": "its allocator returns memory to the kernel and takes it again in every step, "
    "which explains {}",
    "idle": "its main thread was idle for {}: it slept, or waited for storage, a lock or another "
    "process",
}
OF_A_POOL = {
    "host-contended": "its threads waited for a core for {}",
}
"""The same for a rank whose main thread waits for its computing threads."""
COMPUTING = frozenset({*HOST, "idle"})
"""If all of these are ruled out, the rank computes all the time."""


def list_ruled_out(measures: Measures, rank: int) -> tuple[str, ...]:
    """Names of the causes that explain too little of a straggler's excess."""
    causes = measures.causes.get(rank, ())
    return tuple(
        cause.name for cause in causes if cause.share is not None and cause.share < NOTHING
    )


def list_unmeasured(measures: Measures, rank: int) -> tuple[str, ...]:
    """Names of a straggler's causes that were not measured."""
    return tuple(cause.name for cause in measures.causes.get(rank, ()) if cause.seconds is None)


def describe_causes(measures: Measures, rank: int) -> str:
    """Sentences about what explains a straggler's excess; empty if nothing known does."""
    causes = measures.causes.get(rank, ())
    excess = next(
        (straggler.excess for straggler in measures.stragglers or () if straggler.rank == rank), 0.0
    )
    shown = [cause for cause in causes if (cause.share or 0.0) >= NOTHING]
    words = EXPLAINED | (OF_A_POOL if _pooled(measures, rank) else {})
    sentences = [words[straggler.name].format(_part(straggler, excess)) for straggler in shown]
    if not shown and {*list_ruled_out(measures, rank)} >= COMPUTING:
        sentences.append(
            "its main thread computes all that time: its code does more, or its cores are slower"
        )
    return " ".join(f"{sentence[0].upper()}{sentence[1:]}." for sentence in sentences)


def _pooled(measures: Measures, rank: int) -> bool:
    return measures.surroundings.get(rank, UNSEEN).pooled


def cause_named(measures: Measures, rank: int, name: str) -> Cause | None:
    """The seconds of a straggler's excess that one cause explains; None: not measured."""
    return next((cause for cause in measures.causes.get(rank, ()) if cause.name == name), None)


def decides(cause: Cause | None) -> bool:
    """Whether it explains enough to be the cause."""
    return cause is not None and cause.share is not None and cause.share >= DECIDES


def _part(cause: Cause, excess: float) -> str:
    most = min(cause.seconds or 0.0, excess)
    return (
        f"{format_seconds(most)} of the {format_seconds(excess)}"
        if most < 0.9 * excess
        else "all of it"
    )


def _list_names(causes: Iterable[str]) -> tuple[str, ...]:
    """The words for causes, in a fixed order."""
    known = set(causes)
    return tuple(words for name, words in NAMES.items() if name in known)
