"""How large a batch is, and the learning rate for it. Imports no framework."""

import math

from mgpu_trainers.options import BATCH


def replicas(trainer: str, ranks: int, tp: int | None) -> int:
    """How many ranks, or groups of ranks that work on the same batch, share the data. A parameter
    server takes none."""
    if trainer in ("torch-tp", "torch-pp"):
        return 1
    if trainer == "torch-ps":
        return ranks - 1
    return ranks // tp if tp else ranks


def batch(model: str, each: int | None, whole: int | None, replicas: int, accumulate: int) -> int:
    """Samples that a rank takes at once; `whole`: those of all ranks in one step."""
    if whole is not None:
        return whole // (replicas * accumulate)
    return each or BATCH[model]


def rate(base: float, scaling: str, growth: float, step: int, warmup: int) -> float:
    """The learning rate of a step, the first being 1.

    `growth`: samples of a step, as multiples of the model's usual batch. The rate rises evenly over
    the first `warmup` steps.
    """
    full = base * {"none": 1.0, "linear": growth, "sqrt": math.sqrt(growth)}[scaling]
    return full * min(1.0, step / warmup) if warmup else full
