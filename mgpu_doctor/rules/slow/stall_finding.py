"""The finding that all rules about stalls share: period, duration, evidence, and common fixes."""

from __future__ import annotations

import math

from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.analysis.stalls.few_stalls import (
    COMPUTED,
    LEAST_COST,
    LEAST_SECONDS,
    LEAST_STEPS,
)
from mgpu_doctor.analysis.stalls.periodic_stalls import Stalls
from mgpu_doctor.findings import Cost, Evidence, Finding, Fix, Predicted, Severity
from mgpu_doctor.formatting import format_ranks, format_seconds, format_share
from mgpu_doctor.rules.culprits import culprit_of, severity_of_cost
from mgpu_doctor.rules.rule import Limit

SEEN = ("checkpoint", "evaluation")
"""Phases of stalls whose cause the probe saw itself."""
MUCH = 0.1
"""Share of the time from which few stalls are a warning. A choice: the user would notice it."""

RECURS = (
    "At least 3 stalls. Each counts with at most 4 times the duration of the third longest, so "
    "that one or two long stalls are not taken for a recurring one. One or two count by themselves "
    f"if they are of one rank, each takes at least {LEAST_SECONDS:g} s and {LEAST_STEPS:g} median "
    "steps, all other ranks wait for it, and together they take at least "
    f"{format_share(LEAST_COST)} of the time; and if the rank saved or evaluated, was on a CPU for "
    f"{format_share(COMPUTED)} of the time, or was idle and did not wait for a core. They are a "
    f"warning from {format_share(MUCH)} on, unless the rank was idle."
)

COST = Limit(
    "cost",
    0.01,
    "fraction",
    "minimum share of the total time that would be saved without the stalls (of the mean step, so "
    "that a rare stall counts in full); warning from 5 %.",
)
LEAST_RECURRENCE = 3
"""Fewer stalls may be chance."""
AFFORDABLE = 0.01
"""Share of the time that occasional work may take."""
OFTEN = 0.25
"""A stall in a larger share of the steps shows in the median step, so a straggler rule reports
it."""
STRAGGLERS = (
    "straggler-compute",
    "straggler-other",
    "straggler-input",
    "straggler-optimizer",
)
WHAT_IF = "measured what-if: the same steps without"


def of_phases(measures: Measures, phases: tuple[str, ...], least: float) -> list[Stalls]:
    """The stalls in one of these phases that cost enough to report."""
    return [
        stall for stall in measures.stalls or () if stall.phase in phases and stall.saved >= least
    ]


def finding(
    measures: Measures,
    stalls: Stalls,
    *,
    code: str,
    title: str,
    cause: str,
    fixes: tuple[Fix, ...],
    replaces: tuple[str, ...] = (),
    severity: Severity | None = None,
    ruled_out: tuple[str, ...] = (),
) -> Finding:
    """The finding that all stall rules share. `severity`: None: by what the stalls cost."""
    compared = measures.joined.ranks if measures.joined else ()
    mean = measures.joined.step_seconds if measures.joined else measures.step_seconds
    return Finding(
        code=code,
        severity=severity or _severity(stalls),
        confidence=_confidence(stalls),
        title=title,
        cause=cause,
        culprits=tuple(culprit_of(measures, rank) for rank in stalls.ranks),
        victims=tuple(rank for rank in compared if rank not in stalls.ranks),
        evidence=_evidence(stalls, "" if measures.joined is None else " of all ranks, compared"),
        since_step=stalls.since or 0,
        cost=Cost(stalls.saved, None if mean is None else stalls.saved * mean),
        fixes=fixes,
        ruled_out=ruled_out,
        replaces=replaces,
    )


def _confidence(stalls: Stalls) -> float:
    """The confidence: near certain for pauses that the probe timed itself. For others, only their
    number shows that they are not chance."""
    if stalls.waited is None:
        return 0.99
    if stalls.count < LEAST_RECURRENCE:
        return 0.6 if stalls.count == 1 else 0.7
    return 0.95 if stalls.period else 0.85


def _severity(stalls: Stalls) -> Severity:
    """The severity by the cost. Few stalls are no warning if the rank was idle, which may have been
    its storage's fault, or if they cost little in a long run."""
    if not stalls.are_few:
        return severity_of_cost(stalls.saved)
    busy = stalls.phase in SEEN or (stalls.running is not None and stalls.running >= COMPUTED)
    return Severity.WARNING if busy and stalls.saved >= MUCH else Severity.INFO


def _evidence(stalls: Stalls, looked_at: str) -> tuple[Evidence, ...]:
    source = f"{stalls.compared} steps{looked_at}"
    where = format_ranks(stalls.ranks)
    facts = [
        Evidence("stalls found", stalls.count, "times", None, source, where),
        Evidence("median length of a stall", stalls.seconds, "s", None, source, where),
        Evidence("all stalls of a rank together, at most", stalls.total, "s", None, source, where),
    ]
    if stalls.period is not None:
        facts.append(
            Evidence("steps from one to the next", stalls.period, "steps", None, source, where)
        )
    if stalls.waited is not None:
        facts.append(
            Evidence(
                "additional time of the others in collectives per stall",
                stalls.waited,
                "s",
                None,
                source,
                where,
            )
        )
    if stalls.running is not None:
        facts.append(
            Evidence(
                "share of a stall in which its main thread was on a CPU",
                stalls.running,
                "fraction",
                None,
                "CPU clock of the thread",
                where,
            )
        )
    return tuple(facts)


def when(measures: Measures, stalls: Stalls) -> str:
    """`every 20 steps`, `at every epoch (32 steps)`, `11 times in 240 steps`, `once in 9 steps`."""
    if stalls.count == 1:
        return f"once in {stalls.compared} steps"
    if stalls.period is None:
        return f"{stalls.count} times in {stalls.compared} steps"
    distance = f"{stalls.period:.0f} steps" if stalls.period >= 1.5 else "step"
    for rank in stalls.ranks:
        known = measures.rank(rank)
        for loader in known.metadata.loaders if known is not None else ():
            if loader.batches and abs(loader.batches - stalls.period) < 1 and loader.batches > 2:
                return f"at every epoch ({distance})"
    return f"every {distance}"


def each_lasts(stalls: Stalls) -> str:
    """`for 300 ms each time`; of a single stall, `for 2.5 s`."""
    times = " each time" if stalls.count > 1 else ""
    return f"for {format_seconds(stalls.seconds)}{times}"


def busy(stalls: Stalls) -> str:
    """Whether the main thread computed or waited, by its CPU clock; begins with a space."""
    if stalls.running is None:
        return ""
    if stalls.running >= 0.8:
        return " Its main thread was busy all the time."
    if stalls.running <= 0.2:
        return (
            " Its main thread was hardly on a CPU: it waited for storage, the network, a lock, "
            "another process or a timer."
        )
    return f" Its main thread was on a CPU for {stalls.running * 100:.0f} % of that time."


def reported_by(measures: Measures, stalls: Stalls) -> tuple[str, ...]:
    """Codes of straggler findings that these stalls explain: the stalls are so frequent that they
    make up the persistent excess of the same rank."""
    per_step = stalls.total / max(stalls.compared, 1)
    excess = [
        straggler.excess
        for straggler in measures.stragglers or ()
        if straggler.rank in stalls.ranks
    ]
    same = stalls.count > OFTEN * stalls.compared and all(per_step >= each / 2 for each in excess)
    return STRAGGLERS if same else ()


def without(stalls: Stalls, what: str) -> Predicted:
    """The predicted gain of removing the stalls altogether."""
    return Predicted(1 - stalls.saved, None, f"{WHAT_IF} {what}")


def less_often(stalls: Stalls, what: str, setting: str) -> tuple[Fix, ...]:
    """The fix to do it less often, so that it takes at most 1 % of the time; none if it was done
    once."""
    if stalls.count == 1:
        return ()
    distance = stalls.period or stalls.compared / stalls.count
    overhead = stalls.saved / max(1 - stalls.saved, 1e-6)
    interval = max(2, math.ceil(distance * overhead / AFFORDABLE))
    digits = 10 ** max(0, len(str(interval)) - 2)
    interval = math.ceil(interval / digits) * digits
    after = (1 - stalls.saved) * (1 + overhead * distance / interval)
    fix = Fix(
        "less-often",
        f"{what} every {interval} steps instead of every {distance:.0f}",
        f"{setting.format(steps=interval)}. At {format_seconds(stalls.seconds)} each, this takes "
        f"{overhead * distance / interval * 100:.1f} % of the time.",
        Predicted(after, None, f"{WHAT_IF} it, and {distance / interval:.2f} of its cost added"),
    )
    return (fix,)
