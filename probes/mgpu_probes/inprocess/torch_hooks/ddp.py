"""DistributedDataParallel: where the forward pass begins, and its settings for the birth."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch

from .. import births
from ..rank import probe
from ..steps import Steps
from .common import wrap

_FORWARD, _FORWARD_ENDS = Steps.forward_begins, Steps.forward_ends


def patch(distributed: ModuleType) -> None:
    """Wraps `forward` and `__init__` of the class."""
    wrap(distributed.DistributedDataParallel, "forward", _begins, _ends)
    wrap(distributed.DistributedDataParallel, "__init__", _making, _made)


def _begins(_: tuple[Any, ...], __: dict[str, Any]) -> bool | None:
    if not probe.mine():
        return None
    training = torch.is_grad_enabled()
    if training:
        probe.stride.mark(_FORWARD, probe.clock())
    else:
        probe.steps.forward_begins(probe.clock(), training=False)
    return training


def _ends(training: bool, _: Any) -> None:
    if training:
        probe.stride.mark(_FORWARD_ENDS, probe.clock())
    else:
        probe.steps.forward_ends(probe.clock(), training=False)


def _making(args: tuple[Any, ...], _: dict[str, Any]) -> Any:
    return args[0] if probe.on else None


def _made(module: Any, _: Any) -> None:
    births.saw_ddp(module)
