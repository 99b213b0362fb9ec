"""A fix: what it is called, what it makes of a plan, what it costs."""

from __future__ import annotations

from dataclasses import dataclass

from mgpu_doctor.analysis.memory.variants import Variants, smaller_batch, traced

UNMEASURED = "depends on the device; not measured"


@dataclass(frozen=True, slots=True)
class Time:
    """`fraction`: how much longer a sample takes, as a share; None: unknown, `basis` says why."""

    fraction: float | None
    basis: str


@dataclass(frozen=True, slots=True)
class Fix:
    """`variants`: the plan with the fix, from mild to strong; none where it does not apply.
    `time`: what is known without a trace; `caveat`: what else it changes, or why it is no use;
    `unknown`: why it is not predicted, where it is not."""

    id: str
    summary: str
    how: str
    variants: Variants
    time: Time
    caveat: str = ""
    unknown: str = "a trace with it is missing"


SMALLER_BATCH = Fix(
    "smaller-batch",
    "Smaller batches",
    "set the batch of a device to {batch}",
    traced(smaller_batch),
    Time(None, f"smaller kernels use a GPU less well; {UNMEASURED}"),
    "changes the training: the learning rate must follow",
)
"""The same in every framework."""
