"""Backward passes, split into this rank's own work and its wait for others.

The split: autograd runs the callbacks of a backward pass in the order in which they were queued,
after the last gradient. DistributedDataParallel queues its own, in which it waits for the other
ranks, when its last bucket is ready. A callback that is queued when the first node runs comes
before it: it marks the end of the own work. Measured with sleeps in the middle and at the very end
of backward, with find_unused_parameters, static_graph, a communication hook and two modules. Under
CUDA the host runs ahead of the device and nothing can be split from its clock; nothing is queued.
"""

from __future__ import annotations

from math import nan
from types import ModuleType
from typing import Any

import torch

from ..rank import probe
from ..steps import Steps
from ..stride import backward_ended
from .common import guarded, wrap

_BEGINS, _WAITS = Steps.backward_begins, Steps.backward_waits


def patch(autograd: ModuleType) -> None:
    """Wraps the one function through which `backward` and `grad` reach the engine."""
    name = "_engine_run_backward"
    graph = getattr(autograd, "graph", None)
    if hasattr(autograd, name):
        wrap(autograd, name, _begins, _ends)
        if hasattr(graph, name):
            setattr(graph, name, getattr(autograd, name))
    else:
        wrap(autograd, "backward", _begins, _ends)
        wrap(autograd, "grad", _begins, _ends)


class _Pass:
    """One backward pass: the handle of the hook on its first node, and whether own work ended."""

    __slots__ = ("handle", "loss", "stamped")

    def __init__(self, loss: float) -> None:
        self.loss = loss
        self.handle: Any = None
        self.stamped = False

    @guarded
    def started(self, *_: Any) -> None:
        torch.autograd.Variable._execution_engine.queue_callback(self.own_work_ended)

    @guarded
    def own_work_ended(self) -> None:
        if probe.mine() and not self.stamped:
            self.stamped = True
            probe.stride.mark(_WAITS, probe.clock())


def _begins(args: tuple[Any, ...], _: dict[str, Any]) -> _Pass | None:
    if probe.in_backward or not probe.adopt():
        return None
    probe.trained = True
    root: Any = args[0][0] if args and type(args[0]) is tuple and args[0] else None
    plain = type(root) is torch.Tensor
    on_cpu = plain and root.is_cpu
    loss = nan
    if plain:
        probe.device_clock = "cpu" if on_cpu else "host"
        if on_cpu and root.dim() == 0 and root.is_floating_point():
            loss = root.item()  # in host memory already: nothing waits
    this = _Pass(loss)
    probe.in_backward = True
    probe.stride.mark(_BEGINS, probe.clock())
    if on_cpu and probe.world_size > 1 and root.grad_fn is not None:
        this.handle = root.grad_fn.register_prehook(this.started)
    return this


def _ends(this: _Pass, _: Any) -> None:
    probe.in_backward = False
    probe.stride.mark(backward_ended, probe.clock(), (this.loss,))
    if this.handle is not None:
        this.handle.remove()
