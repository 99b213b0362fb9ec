"""Batch sizes, learning rates with warm-up, and where a resumed run continues.

Pure; called by the training loops of both frameworks. Imports no framework.
"""

import math

from mgpu_trainers.options import BATCH


def batch_size(
    model: str, rank_batch: int | None, global_batch: int | None, replicas: int, accumulate: int
) -> int:
    """Samples per rank and batch; `whole`: those of all ranks in one step, if given."""
    if global_batch is not None:
        return global_batch // (replicas * accumulate)
    return rank_batch or BATCH[model]


def learning_rate(base: float, scaling: str, growth: float, step: int, warmup: int) -> float:
    """The learning rate of a step, the first being 1.

    `growth`: samples of a step, as multiples of the model's usual batch. The rate rises evenly over
    the first `warmup` steps.
    """
    full = base * {"none": 1.0, "linear": growth, "sqrt": math.sqrt(growth)}[scaling]
    return full * min(1.0, step / warmup) if warmup else full


def describe_resumed(steps_done: int, steps: int) -> str:
    """A sentence about a checkpoint that has `done` steps of the `steps` wanted in all."""
    remark = "" if steps_done < steps else f", and --steps {steps} asks for no more"
    return f"resumed after step {steps_done}{remark}"
