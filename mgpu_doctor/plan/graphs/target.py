"""What the user's function returned, where it is about TensorFlow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from mgpu_doctor.plan.tracing.pointing import TargetError

PROTOCOL = (
    "return (model, batch, loss), (compiled model, batch) or (step, batch): a Keras model, a "
    "function of the number of samples that makes a batch, and a function of model and batch that "
    "gives the loss; or a training step of yours, called with the batch (docs/plan.md)"
)


@dataclass(frozen=True, slots=True)
class Trained:
    """One of `loss` and `step` is there. `own`: model and optimizer are in a step of the user's,
    or the model was compiled with an optimizer."""

    model: Any
    batch: Callable[[int], Any]
    loss: Callable[[Any, Any], Any] | None
    step: Callable[..., Any] | None


def read(returned: Any) -> Trained:
    """Raises TargetError where it is something else."""
    parts = returned if isinstance(returned, tuple) else (returned,)
    if len(parts) not in (2, 3) or not all(callable(part) for part in parts):
        what = ", ".join(type(part).__name__ for part in parts)
        raise TargetError(f"the function returned ({what}); let it {PROTOCOL}.")
    model = parts[0] if isinstance(parts[0], keras.Model) else None
    if len(parts) == 3:
        if model is None:
            raise TargetError(f"the first of three must be a Keras model; let it {PROTOCOL}.")
        return Trained(model, parts[1], parts[2], None)
    if model is None:
        return Trained(None, parts[1], None, parts[0])
    if not model.compiled:
        raise TargetError(f"the model is not compiled, and there is no loss; let it {PROTOCOL}.")
    return Trained(model, parts[1], None, model.train_step)


def tensors(batch: Any) -> list[Any]:
    """Raises TargetError where there are none."""
    found = [each for each in tf.nest.flatten(batch) if hasattr(each, "shape")]
    if not found:
        raise TargetError("the batch holds no tensors: let it be one, or a tuple or dict of some.")
    return found
