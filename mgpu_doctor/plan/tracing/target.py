"""What the user's function returned, where it is about torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from mgpu_doctor.plan.tracing.pointing import APART, TargetError

PROTOCOL = (
    "return (model, batch) or (model, batch, loss): a module, a function of the number of samples "
    "that makes a batch, and a function of model and batch that gives the loss (docs/plan.md)"
)


@dataclass(frozen=True, slots=True)
class Trained:
    """What a step is made of. `batch`: of so many samples; `loss`: a scalar."""

    model: nn.Module
    batch: Callable[[int], Any]
    loss: Callable[[nn.Module, Any], torch.Tensor]


def refuse_groups() -> None:
    """What trains with others is planned alone."""
    torch.distributed.init_process_group = _no_group


def read(returned: Any) -> Trained:
    """What the function returned. Raises TargetError where it is something else."""
    parts = returned if isinstance(returned, tuple) else (returned,)
    if type(parts[0]).__module__.partition(".")[0] in ("keras", "tensorflow"):
        raise TargetError(
            "the function returned a model of Keras, but its file does not import keras or "
            "tensorflow, or torch as well: name one that imports it and not torch."
        )
    if len(parts) not in (2, 3) or not isinstance(parts[0], nn.Module):
        what = ", ".join(type(part).__name__ for part in parts)
        raise TargetError(f"the function returned ({what}); let it {PROTOCOL}.")
    if not all(callable(part) for part in parts[1:]):
        raise TargetError(f"batch and loss must be functions; let it {PROTOCOL}.")
    return Trained(parts[0], parts[1], parts[2] if len(parts) == 3 else _own_loss)


def tensors(batch: Any) -> Iterable[torch.Tensor]:
    """All tensors inside a batch, however it is nested."""
    if isinstance(batch, torch.Tensor):
        yield batch
    elif isinstance(batch, dict):
        yield from (tensor for each in batch.values() for tensor in tensors(each))
    elif isinstance(batch, (tuple, list)):
        yield from (tensor for each in batch for tensor in tensors(each))


def _own_loss(model: nn.Module, batch: Any) -> torch.Tensor:
    """Of a model that computes its loss by itself."""
    if isinstance(batch, dict):
        made = model(**batch)
    else:
        made = model(*batch) if isinstance(batch, (tuple, list)) else model(batch)
    loss = made.get("loss") if isinstance(made, dict) else getattr(made, "loss", made)
    if isinstance(loss, torch.Tensor) and loss.ndim == 0:
        return loss
    raise TargetError(f"the model gives no loss by itself; let the function {PROTOCOL}.")


def _no_group(*_: Any, **__: Any) -> None:
    raise TargetError(f"your code starts a process group, which no plan can join: {APART}.")
