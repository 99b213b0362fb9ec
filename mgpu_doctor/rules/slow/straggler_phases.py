"""Ranks whose compute, optimizer or other work is slow in every step."""

from __future__ import annotations

from collections.abc import Iterable

from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.analysis.stacks.stack_sampling import Work
from mgpu_doctor.analysis.stragglers.persistent_stragglers import Straggler
from mgpu_doctor.findings import Finding, Fix
from mgpu_doctor.rules.advice import next_time, on_process
from mgpu_doctor.rules.rule import Detector, Examine, Limits, Rule
from mgpu_doctor.rules.slow import sampled_stragglers
from mgpu_doctor.rules.slow.straggler_finding import (
    COST,
    FAMILIES,
    MEASURED,
    THRESHOLDS,
    UNSEEN_INPUT,
    compared_ranks,
    describe_forward,
    of_family,
    other_ranks,
    reference_of,
    straggler_finding,
)
from mgpu_doctor.rules.traces import trace_stragglers


def _biggest(straggler: Straggler, family: str) -> str:
    return max(FAMILIES[family], key=lambda phase: straggler.by_phase.get(phase) or 0.0)


def _compute(measures: Measures, limits: Limits) -> Iterable[Finding]:
    for straggler in of_family(measures, "compute", limits):
        parts = {p: straggler.by_phase.get(p) or 0.0 for p in FAMILIES["compute"]}
        both = min(parts["forward"], parts["backward"]) >= 0.2 * straggler.excess
        phase = "forward and backward" if both else _biggest(straggler, "compute")
        forward = describe_forward(measures, straggler.rank)
        how = (
            f"Look for work that only it does (`if rank == {straggler.rank}`, hooks, larger "
            "batches)."
        )
        known = measures.rank(straggler.rank)
        if known is not None and known.metadata.hands_samples_on:
            how = (
                "Count the tokens that all_to_all sends to each rank: a router that prefers this "
                "rank's experts gives it more work. A load-balancing loss or a capacity factor "
                "fixes that."
            )
        elif both:
            how = (
                "Both passes are slow, so suspect hardware or data before code: compare clocks, "
                "load and temperature of this rank's device and host with the others', and its "
                "batches (samples, sequence length)."
            )
        elif phase == "forward":
            how += forward.how
        how += f"\n{_compare_stacks(measures, straggler)}"
        summary = f"Find out why the {phase} work of rank {straggler.rank} is slow"
        what = f"its {phase} pass" if phase != "transfer" else "its host-to-device transfer"
        cause = (
            f"The rank's own {phase} work is slower than {reference_of(measures, straggler).ranks}"
        )
        if phase == "forward":
            what, cause = forward.what, f"{cause}{forward.caveat}"
            if forward is UNSEEN_INPUT:
                summary = f"Find out what rank {straggler.rank} does until backward starts"
        yield straggler_finding(
            measures,
            straggler,
            code="straggler-compute",
            what=what,
            phases=("forward", "backward") if both else (phase,),
            cause=f"{cause}.",
            fixes=[
                Fix(
                    "fix-rank",
                    summary,
                    how,
                )
            ],
        )


def _optimizer(measures: Measures, limits: Limits) -> Iterable[Finding]:
    for straggler in of_family(measures, "optimizer", limits):
        yield straggler_finding(
            measures,
            straggler,
            code="straggler-optimizer",
            what="its optimizer step",
            phases=FAMILIES["optimizer"],
            cause="The optimizer step of this rank takes longer than "
            f"{reference_of(measures, straggler).ranks}: work that only this rank does in "
            "`step()`, its hooks or gradient clipping, or a larger share of a sharded optimizer.",
            fixes=[
                Fix(
                    "fix-optimizer",
                    "Remove the extra work from the optimizer step",
                    "Look for rank-dependent code around `optimizer.step()` (hooks, logging of "
                    "norms, EMA copies); with ZeRO or ZeroRedundancyOptimizer give every rank an "
                    "equal share of the parameters.",
                )
            ],
        )


def _other(measures: Measures, limits: Limits) -> Iterable[Finding]:
    for straggler in of_family(measures, "other", limits):
        phase = _biggest(straggler, "other")
        place = "outside every phase" if phase == "other" else f"in {phase}"
        only = f"`if rank == {straggler.rank}`"
        yield straggler_finding(
            measures,
            straggler,
            code="straggler-other",
            what=f"its time {place}",
            phases=(phase,),
            cause=f"This rank, unlike {other_ranks(measures, straggler)}, does something {place} "
            "(between steps, or in Python around the model): logging, metrics, saving, `.item()` "
            "or printing.",
            fixes=[
                Fix(
                    "move-work",
                    "Do this work less often, or in the background",
                    f"Search the training loop for what only this rank does ({only}): do it every "
                    "100th step (`if step % 100 == 0:`), or hand it to a background thread.\n"
                    f"{_compare_stacks(measures, straggler)}",
                )
            ],
        )


def _compare_stacks(measures: Measures, straggler: Straggler) -> str:
    """Commands that show which lines differ from those of a healthy rank."""
    well = next((rank for rank in compared_ranks(measures) if rank != straggler.rank), None)
    lines = []
    for number in (straggler.rank, well):
        rank = None if number is None else measures.rank(number)
        command = f"py-spy record --pid PID --duration 30 -o rank{number}.svg"
        lines.append(on_process(measures.case, rank, command))
    return f"{next_time(measures.case)}, compare where the time goes:\n" + "\n".join(lines)


def _rule(
    code: str,
    summary: str,
    phases: str,
    fixes: str,
    examine: Examine,
    *alternatives: Detector,
) -> Rule:
    return Rule(
        code=code,
        family="slow",
        summary=summary,
        measured=MEASURED.format(phases=phases),
        thresholds=THRESHOLDS,
        fixes=fixes,
        examine=examine,
        needs=("stragglers",),
        alternatives=(*alternatives, trace_stragglers.detector(code)),
        limits=(COST,),
    )


RULES = (
    _rule(
        "straggler-compute",
        "A rank's forward or backward pass, or its host-to-device copy, is slower on every step, "
        "and all other ranks wait for it.",
        "Reported if transfer, forward and backward explain most of the excess.",
        "If one pass is slow, look at code that only this rank runs. If all of its work is slow, "
        "look at its device and host: clocks, temperature, a neighbour on its cores, its batch.",
        _compute,
        sampled_stragglers.detector(Work.COMPUTE),
    ),
    _rule(
        "straggler-optimizer",
        "A rank's optimizer step is slower on every step, and all other ranks wait for it.",
        "Reported if the optimizer phase explains most of the excess.",
        "Take rank-dependent work out of the optimizer step; balance a sharded optimizer.",
        _optimizer,
    ),
    _rule(
        "straggler-other",
        "A rank spends time outside of every phase (logging, metrics, saving, Python between "
        "steps) on every step, and all other ranks wait for it.",
        "Reported if time outside of input, compute and optimizer explains most of the excess.",
        "Do that work every N steps on all ranks, or in a background thread.",
        _other,
        sampled_stragglers.detector(Work.OTHER),
    ),
)
