"""Gradients added up over several batches, and exchanged in each of them."""

from __future__ import annotations

from collections.abc import Iterable

from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.findings import Evidence, Finding, Fix, Predicted, Severity
from mgpu_doctor.formatting import format_seconds, format_share
from mgpu_doctor.rules.blame import severity_of_cost
from mgpu_doctor.rules.communication.exposed import HALF, cost, exchanged, exposed_share, needless
from mgpu_doctor.rules.rule import Limits, Rule

COUNTED = "forward passes counted by the probe"


def how_to_accumulate(batches: int) -> str:
    """Code for DistributedDataParallel and the settings of what is built upon it."""
    return (
        "In the loop, with the forward pass inside, too:\n"
        f"    last = (i + 1) % {batches} == 0\n"
        "    with contextlib.nullcontext() if last else model.no_sync():\n"
        f"        loss = criterion(model(inputs), targets) / {batches}\n"
        "        loss.backward()\n"
        "    if last:\n"
        "        optimizer.step()\n"
        "        optimizer.zero_grad()\n"
        f"In Lightning: Trainer(accumulate_grad_batches={batches}). In Accelerate: "
        f"Accelerator(gradient_accumulation_steps={batches}) and `with accelerator.accumulate"
        f"(model):` around the body. In transformers: gradient_accumulation_steps={batches}."
    )


def _accumulation(measures: Measures, _: Limits) -> Iterable[Finding]:
    often = exchanged(measures)
    if often is None or often.passes < 2 or often.synced - often.updates < HALF:
        return
    step = measures.step_seconds
    moved = exposed_share(measures, often)
    saved = needless(measures) if moved is not None else None
    spent = format_seconds(saved * step) if saved is not None and step else "time"
    batches, most = round(often.passes), round(often.synced)
    evidence = [
        Evidence("exchanges of gradients a step", often.synced, "times", often.updates, COUNTED),
        Evidence("backward passes a step", often.passes, "times", None, "step records"),
    ]
    predicted = None
    if moved is not None and saved is not None:
        share, source = moved
        evidence.append(
            Evidence("exposed communication, of the step", share, "fraction", None, source)
        )
        predicted = Predicted(
            1 - saved,
            None,
            f"formula: {format_share(often.needless)} of the exposed communication, and of the "
            "CPU time "
            "that moving the rest takes where no core is free; within a fifth, and rather more, as "
            "ranks would also wait for each other less often",
        )
    yield Finding(
        code="accumulation-syncs",
        severity=severity_of_cost(saved) if saved is not None else Severity.INFO,
        confidence=0.95,
        title=f"Gradients are exchanged {most} times for one update: {spent} a step for nothing",
        cause=f"An update adds up the gradients of {batches} backward passes, and "
        f"DistributedDataParallel exchanges them in {most} of these; only the last one needs it.",
        evidence=tuple(evidence),
        since_step=0,
        cost=cost(saved, step),
        fixes=(
            Fix(
                "no-sync",
                "Exchange gradients in the last micro-batch only",
                how_to_accumulate(batches),
                predicted,
            ),
        ),
    )


RULES = (
    Rule(
        code="accumulation-syncs",
        family="slow",
        summary="Gradients of several micro-batches are added up for one update, and exchanged "
        "between the ranks in each of them.",
        measured="Backward passes a step, the share of DistributedDataParallel's forward passes "
        "outside of `no_sync`, and optimizer steps a step. What the needless exchanges cost is "
        "their share of the exposed communication.",
        thresholds="At least two backward passes a step, and half an exchange a step more than "
        "optimizer steps. With several optimizers whose steps were not counted, and with LBFGS, "
        "nothing is said. Warning from 5 % of the step time.",
        fixes="`with model.no_sync():` around forward and backward of all micro-batches but the "
        "last.",
        examine=_accumulation,
        needs=("step_seconds",),
    ),
)
