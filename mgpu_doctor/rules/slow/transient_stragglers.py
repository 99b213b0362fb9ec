"""Occasional stalls: the garbage collector, checkpoints, work of one rank alone, and others."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from mgpu_doctor.analysis.machines.cpu_contention import CROWDED, UNSEEN, Surroundings
from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.analysis.stalls.periodic_stalls import Stalls
from mgpu_doctor.analysis.stalls.unexplained_stalls import STANDS_OUT
from mgpu_doctor.analysis.steps.step_alignment import Joined
from mgpu_doctor.analysis.stragglers.straggler_causes import DECIDES
from mgpu_doctor.findings import Finding, Fix, Predicted, Severity
from mgpu_doctor.formatting import format_ranks, format_seconds, format_share
from mgpu_doctor.rules.advice import next_time, on_process
from mgpu_doctor.rules.rule import Limits, Rule
from mgpu_doctor.rules.slow.host_contention import clear_cores, find_host_cause
from mgpu_doctor.rules.slow.stall_finding import (
    COST,
    OFTEN,
    RECURS,
    WHAT_IF,
    busy,
    each_lasts,
    finding,
    less_often,
    of_phases,
    reported_by,
    when,
    without,
)
from mgpu_doctor.rules.slow.straggler_finding import describe_forward

SHARED = 0.1
"""From this share of a rank's evaluation that the others spend evaluating too, all evaluate. A
choice: they spend nothing where only one rank evaluates, and 0.35 where its evaluation takes three
times as long."""


@dataclass(frozen=True, slots=True)
class Queued:
    """Shares of the time, 0..1, in which a main thread waited for a core."""

    around: Surroundings
    own: float
    others: float
    """Median."""


def queued(measures: Measures, stalls: Stalls) -> Queued | None:
    """The shares of the stalling rank, if its extra wait for a core is at least half of its stalls;
    None otherwise, or if several ranks stall alternately, or if it was not measured."""
    joined = measures.joined
    if joined is None or len(stalls.ranks) > 1:
        return None
    waits = {rank: measures.surroundings.get(rank, UNSEEN).queueing for rank in joined.ranks}
    own = waits.pop(stalls.ranks[0], None)
    known = [share for share in waits.values() if share is not None]
    if own is None or not known:
        return None
    others = float(np.median(known))
    lasted = _measure_length(joined, stalls)
    if (own - others) * lasted < DECIDES * stalls.total:
        return None
    return Queued(measures.surroundings[stalls.ranks[0]], own, others)


def _alone(measures: Measures, limits: Limits) -> Iterable[Finding]:
    for stalls in of_phases(measures, ("evaluation", "other"), limits["cost"]):
        if not _is_extra_work(stalls) or _is_explained_by_straggler(measures, stalls):
            continue
        if stalls.phase == "other":
            title, cause, fix = _extra_work(measures, stalls)
        elif stalls.shared < SHARED:
            title, cause, fix = _lone_evaluation(measures, stalls)
        else:
            title, cause, fix = _longer_evaluation(measures, stalls)
        what = "evaluation" if stalls.phase == "evaluation" else "work"
        yield finding(
            measures,
            stalls,
            code="rank0-only-work",
            title=title,
            cause=cause,
            fixes=(
                fix,
                *less_often(stalls, f"Do that {what}", "`if step % {steps} == 0:` around it"),
            ),
            replaces=reported_by(measures, stalls),
        )


def _lone_evaluation(measures: Measures, stalls: Stalls) -> tuple[str, str, Fix]:
    count, ranks = len(measures.joined.ranks) if measures.joined else 1, format_ranks(stalls.ranks)
    return (
        f"Only {ranks} evaluates {when(measures, stalls)}, {each_lasts(stalls)}, and the other "
        "ranks wait",
        f"Only {ranks} evaluates (runs batches through the model without training on them); the "
        "other ranks wait in their next collective.",
        Fix(
            "evaluate-together",
            f"Divide the evaluation among all {count} ranks",
            "Use `DataLoader(validation, sampler=DistributedSampler(validation, shuffle=False))` "
            "on every rank, without `if rank == 0`, and sum losses and hits with "
            "`dist.all_reduce`. The sampler repeats a few samples if the data set does not divide "
            "evenly.",
            Predicted(
                1 - stalls.saved * (1 - 1 / count),
                None,
                f"formula: 1/{count} of the evaluation on every rank",
            ),
        ),
    )


def _longer_evaluation(measures: Measures, stalls: Stalls) -> tuple[str, str, Fix]:
    return (
        f"{format_ranks(stalls.ranks).capitalize()} evaluates longer than the other ranks "
        f"{when(measures, stalls)}, {each_lasts(stalls)}, and they wait",
        "All ranks evaluate, and this one does more meanwhile: logging, a progress bar, saving, or "
        f"more batches.{busy(stalls)}",
        _move_work(measures, stalls),
    )


def _extra_work(measures: Measures, stalls: Stalls) -> tuple[str, str, Fix]:
    return (
        f"Only {format_ranks(stalls.ranks)} does extra work {when(measures, stalls)}, "
        f"{each_lasts(stalls)}, and the other ranks wait",
        "This rank alone is busy at regular intervals, outside every phase that the probe "
        f"measures; the other ranks wait. Typical work in `if rank == {stalls.ranks[0]}`: logging, "
        f"metrics, plots, uploads, saving or evaluating by hand.{busy(stalls)}",
        _move_work(measures, stalls),
    )


def _move_work(measures: Measures, stalls: Stalls) -> Fix:
    return Fix(
        "move-work",
        "Move the work to a background thread",
        f"Find what `if rank == {stalls.ranks[0]}` does {when(measures, stalls)}. Copy the values "
        "it needs and hand them to a thread: `pool = ThreadPoolExecutor(1)` before the loop, "
        "`pool.submit(log, step, values)` in it.",
        without(stalls, "it, an upper bound: the copy still takes time"),
    )


def _is_extra_work(stalls: Stalls) -> bool:
    """Whether this is work assigned to one rank: it evaluates, or it is rank 0, which
    scripts choose for that, at regular intervals."""
    if stalls.phase == "evaluation":
        return True
    return stalls.phase == "other" and stalls.ranks == (0,) and stalls.period is not None


def _is_explained_by_straggler(measures: Measures, stalls: Stalls) -> bool:
    """Whether a straggler rule reports the same: a stall in every second step may be either."""
    slow = {straggler.rank for straggler in measures.stragglers or ()}
    return (
        stalls.waited is not None
        and bool(slow & {*stalls.ranks})
        and stalls.count > OFTEN * stalls.compared
    )


def _in_slices(measures: Measures, stalls: Stalls) -> bool:
    """Whether a straggler rule gives the cause: a rank that keeps waiting for a core gets it in
    time slices, and waits longer in some steps, in the phase in which it waits in all of them."""
    waits = {
        straggler.rank: straggler.by_phase.get(stalls.phase) or 0.0
        for straggler in measures.stragglers or ()
        if (cause := find_host_cause(measures.causes.get(straggler.rank, ()), DECIDES)) is not None
        and cause.name in ("host-contended", "host-throttled")
    }
    per_step = stalls.total / max(stalls.compared, 1)
    return all(waits.get(rank, 0.0) >= per_step for rank in stalls.ranks)


MAY_HIT_ANY_RANK = (
    " Where all cores of a host are busy, any rank may stall like this: repeat the run on a quiet "
    "host."
)
FORWARD = "forward"
DOES = {
    "input": "its batches arrive late (data loader, workers or storage)",
    "transfer": "its host-to-device copies take longer",
    "backward": "its backward pass takes longer",
    "optimizer": "its optimizer step takes longer",
    "other": "it spends time outside every phase (logging, metrics, saving by hand, or other "
    "Python code around the model)",
}


def _transient(measures: Measures, limits: Limits) -> Iterable[Finding]:
    for stalls in of_phases(measures, (FORWARD, *DOES), limits["cost"]):
        if (
            _is_extra_work(stalls)
            or _is_explained_by_straggler(measures, stalls)
            or _in_slices(measures, stalls)
        ):
            continue
        several = len(stalls.ranks) > 1
        which = "these steps" if stalls.period is None else f"each {stalls.period:.0f}th step"
        if stalls.count == 1:
            which = f"step {stalls.steps[0]}"
        turns = " alternately" if several else ""
        ready = queued(measures, stalls)
        by_host = _may_be_hosts(measures, stalls, ready)
        used_up = None if ready is not None else _find_used_up_quota(measures, stalls)
        fix = _find(measures, stalls) if ready is None else clear_cores(ready.around)
        if used_up is not None:
            fix = _raise_quota(stalls)
        yield finding(
            measures,
            stalls,
            code="straggler-transient",
            title=f"{format_ranks(stalls.ranks).capitalize()} "
            f"{'stall' if several else 'stalls'}{turns} {when(measures, stalls)}, "
            f"{each_lasts(stalls)}",
            cause=f"In {which}, {_describe_phase(measures, stalls)}."
            f"{_why(stalls, ready, used_up)}"
            f"{MAY_HIT_ANY_RANK if by_host else ''}",
            severity=Severity.INFO if by_host else None,
            ruled_out=("garbage collection", "checkpoints", "evaluation"),
            fixes=(
                replace(
                    fix, predicted=Predicted(1 - stalls.saved, None, f"{WHAT_IF} these stalls")
                ),
            ),
        )


def _describe_phase(measures: Measures, stalls: Stalls) -> str:
    """What takes longer during the stalls, as a part of a sentence."""
    if stalls.phase != FORWARD:
        return DOES[stalls.phase]
    forward = describe_forward(measures, stalls.ranks[0])
    return f"{forward.what} takes longer{forward.caveat}"


def _why(stalls: Stalls, ready: Queued | None, used_up: Surroundings | None) -> str:
    """What the main thread did meanwhile; begins with a space."""
    if ready is not None:
        return _without_core(ready)
    if used_up is not None and used_up.quota is not None:
        return (
            f" Its control group had used up its CPU quota ({used_up.quota:g} cores) for "
            f"{format_seconds(used_up.throttled)} of every second, summed over cores."
        )
    return busy(stalls)


def _find_used_up_quota(measures: Measures, stalls: Stalls) -> Surroundings | None:
    """The surroundings of a stalling rank if all of these were stopped by a CPU quota for at least
    half of their stalls, and no other rank was stopped half as much; None: that is not known."""
    if measures.joined is None:
        return None
    stopped = {rank: measures.surroundings.get(rank, UNSEEN) for rank in measures.joined.ranks}
    own = [stopped.pop(rank) for rank in stalls.ranks]
    least = min((around.throttled or 0.0) for around in own)
    lasted = _measure_length(measures.joined, stalls)
    if least * lasted < DECIDES * stalls.total or any(around.quota is None for around in own):
        return None
    others = max(((around.throttled or 0.0) for around in stopped.values()), default=0.0)
    return own[0] if others < DECIDES * least else None


def _raise_quota(stalls: Stalls) -> Fix:
    return Fix(
        "raise-quota",
        f"Raise the CPU quota of {format_ranks(stalls.ranks)}, or remove it",
        "docker update --cpus N CONTAINER; Kubernetes: resources.limits.cpu (or no limit, requests "
        "alone); systemd: systemctl set-property UNIT CPUQuota=N00%; Slurm: more --cpus-per-task.",
    )


def _may_be_hosts(measures: Measures, stalls: Stalls, ready: Queued | None) -> bool:
    """Whether the host may stall any rank like this, at no regular distance: the ranks' waits for a
    core explain the stalls, and all ranks have them; or these waits are unknown, and other
    processes use the cores for long enough to explain the stalls."""
    if stalls.period is not None:
        return False
    if ready is not None:
        return ready.others >= STANDS_OUT * ready.own
    if measures.joined is None or measures.joined.is_device_timed:
        return False  # a device waits for no core
    waits = [measures.surroundings.get(rank, UNSEEN).queueing for rank in stalls.ranks]
    computed = stalls.running is not None and stalls.running >= DECIDES
    if None not in waits or computed:
        return False
    share = min(measures.possible_waits.get(rank, 0.0) for rank in stalls.ranks)
    return share * _measure_length(measures.joined, stalls) >= DECIDES * stalls.total


def _measure_length(joined: Joined, stalls: Stalls) -> float:
    """Seconds of the compared steps, of the rank that stalls most."""
    return float(np.nansum(joined.wall[:, joined.ranks.index(stalls.ranks[0])]))


def _without_core(ready: Queued) -> str:
    return (
        f" Its main thread waited for a CPU core for {format_share(ready.own)} of the time (on the "
        f"other ranks: {format_share(ready.others)}), because other processes or its own threads "
        "occupied the cores."
    )


def _find(measures: Measures, stalls: Stalls) -> Fix:
    first = measures.rank(stalls.ranks[0])
    command = "py-spy record --pid PID --duration 60 --idle"
    command = on_process(measures.case, first, command)
    marks = describe_forward(measures, stalls.ranks[0]).how if stalls.phase == FORWARD else ""
    return Fix(
        "find-stall",
        f"Find what {format_ranks(stalls.ranks)} does {when(measures, stalls)}",
        f"Search the training loop for work that is not done in every step (`step % …`, `if rank "
        f"== {stalls.ranks[0]}`). {next_time(measures.case)}, record it: `{command} "
        "--format speedscope --output stalls.json` shows on a time line which lines run during a "
        f"stall.{marks}",
    )


RULES = (
    Rule(
        code="rank0-only-work",
        family="slow",
        summary="One rank sometimes evaluates, logs or does other work, and the others wait.",
        measured="Evaluation is batches from a loader that the model is not trained on. It is "
        "reported if a rank spends twice as long on it as the median of the other ranks in the "
        "same step. Other work is reported only for rank 0, if it recurs regularly outside every "
        "phase.",
        thresholds=RECURS + " Work other than evaluation must pass the test of "
        "`straggler-transient`.",
        fixes="Divide the evaluation among the ranks, log in a background thread, or do it less "
        "often.",
        examine=_alone,
        needs=("stalls",),
        limits=(COST,),
    ),
    Rule(
        code="straggler-transient",
        family="slow",
        summary="A rank, or different ranks alternately, is much slower in some steps, and all "
        "others wait.",
        measured="Steps in which a rank's own work (without garbage collection, checkpoints, "
        "evaluation and the effect of more data) exceeds its usual time by 2.5 standard deviations "
        "and by a tenth of the step. Its work must be back at the usual time in the steps before "
        "and after, and the other ranks must wait for at least half of the excess.",
        thresholds="Random interruptions by the machine hit all ranks equally, at random moments, "
        "and each phase in proportion to its duration. The probability that they hit this rank "
        "(Chernoff bound), at these distances (geometric) and in this phase must be below 1 in "
        "1,000 (tests/doctor/analysis/test_stall_silence.py). "
        + RECURS
        + " They are only a note if they come at no regular distance, and all ranks "
        "wait for cores, the others at least a third as long as this one, and that explains half "
        "of the stalls; or if that was not measured, its main thread was not on a CPU, and other "
        "processes used the cores for at least half as long while none was free (at any time if "
        f"{format_share(CROWDED)} of the cores were busy on average; else as often as by chance).",
        fixes="Find what the rank does in these steps; py-spy shows it on a time line.",
        examine=_transient,
        needs=("stalls",),
        limits=(COST,),
    ),
)
