"""DistributedDataParallel: where the forward pass begins, and its settings for the birth."""

from __future__ import annotations

from threading import get_ident
from types import ModuleType
from typing import Any

import torch

from .. import births
from ..rank import probe
from ..steps import Steps
from . import autograd
from .common import wrap

_FORWARD, _FORWARD_ENDS = Steps.forward_begins, Steps.forward_ends


def patch(distributed: ModuleType) -> None:
    """Wraps `forward` and `__init__` of the class."""
    wrap(distributed.DistributedDataParallel, "forward", _begins, _ends)
    wrap(distributed.DistributedDataParallel, "__init__", _making, _made)


def _begins(_: tuple[Any, ...], __: dict[str, Any]) -> bool | None:
    if not probe.on or get_ident() != probe.owner:
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
    _watch(module)


def _watch(module: Any) -> None:
    """The wait in this module's backward passes is seen from one of its parameters, where each of
    them runs in each pass and the module queues nothing before that."""
    unusual = ("find_unused_parameters", "static_graph")
    if any(getattr(module, setting, True) for setting in unusual):
        autograd.this.modules_alike = False
        return
    for parameter in getattr(module, "_module_parameters", ()):
        if parameter.requires_grad and parameter.is_cpu:
            with torch.enable_grad():
                autograd.watch(parameter.expand_as(parameter).grad_fn.next_functions[0][0])
            return
