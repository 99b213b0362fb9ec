"""Wraps backward passes, and splits each into this rank's own work and its wait for other ranks.

How it splits: autograd runs the callbacks of a backward pass after the last gradient, in the order
in which they were queued. DistributedDataParallel queues one, in which it waits for the other
ranks, when its last bucket is ready. The probe's callback is queued when the first node runs, so it
runs before DDP's and marks the end of the own work. Measured with sleeps in the middle and at the
very end of backward, with find_unused_parameters, static_graph, a communication hook and two
modules.

On a GPU the host runs ahead, so its clock cannot split the pass: the callback is queued only in
turns that are timed by the device, and marks only the device's stream. There autograd's own thread
runs the pass and the callbacks, while the training thread waits for it.
"""

from __future__ import annotations

from math import inf, nan
from threading import get_ident
from types import FrameType, ModuleType
from typing import Any

import torch

from ... import wrap as hooks
from ...probe_context import ProbeContext
from ...step_engine import Steps
from ...step_marks import backward_ended
from . import cuda_captures, device_events
from .torch_support import wrap

probe: ProbeContext

_BEGINS, _GIVES = Steps.backward_begins, Steps.gradient_begins
_WAITS = Steps.backward_waits


def patch(autograd: ModuleType) -> None:
    """Wraps the function through which `backward` and `grad` call autograd's engine."""
    name = "_engine_run_backward"
    graph = getattr(autograd, "graph", None)
    if hasattr(autograd, name):
        wrap(autograd, name, _begins, _ends, raised_at_rest=_raised_at_rest)
        if hasattr(graph, name):
            setattr(graph, name, getattr(autograd, name))
    else:
        wrap(autograd, "backward", _begins, _ends, raised_at_rest=_raised_at_rest)
        wrap(autograd, "grad", _begins, _ends, raised_at_rest=_raised_at_rest)


class _Pass:
    """The state of the running backward pass, or of the last one."""

    handle: Any = None
    """The handle of the hook on its first node; None: it has no such hook."""
    loss = nan
    passes = 0
    """Number of backward passes so far."""
    thread = (0, -1)
    """The engine's thread that runs the pass, and the number of the pass for which it was found."""
    queued = waits = False
    """The callback is queued; the own work has ended."""
    by_module = False
    """A wrapped module's hook queued the callback, so the next pass needs no hook of its own."""
    modules_alike = True
    """Whether all wrapped modules have such a hook."""
    on_device = False
    """Whether its loss is on a GPU or another asynchronous device."""
    engine_waits = True
    """Whether the rank may wait for others inside autograd's engine, where no Python call shows
    it."""
    scaled: tuple[int, float] = (0, nan)
    """The `id` of the newest result of a gradient scaler, and the unscaled loss."""


this = _Pass()
node_hooks: list[Any] = []
"""torch's handles of the hooks that `watch` registered."""


def watch(node: Any) -> None:
    """Queues the callback when `node` runs, the node of a parameter that takes part in every
    backward pass of a wrapped module. Much cheaper than a new hook on the first node of every
    pass."""
    node_hooks.append(node.register_prehook(runs_in_module))


def _raised_at_rest(error: BaseException) -> None:
    """Records that a wait for other ranks failed, if the error comes from within the engine."""
    if get_ident() != probe.owner:
        return
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    if traceback is not None and waits_inside(traceback.tb_frame):
        probe.sampler.show_wait()
        probe.was_interrupted(error)
    probe.sampler.interrupt()


def waits_inside(frame: FrameType) -> bool:
    """Whether a thread with this innermost frame may wait for other ranks in autograd's engine."""
    return (
        frame.f_code.co_name == "_engine_run_backward"
        and probe.world_size > 1
        and this.engine_waits
    )


def runs_in_module(*_: Any) -> None:
    if this.queued:
        this.by_module = this.modules_alike
    elif probe.in_backward:
        _queue(this.modules_alike)


def _runs_first(*_: Any) -> None:
    if not this.queued:
        _queue(False)


def _queue(by_module: bool) -> None:
    if hooks.compiling():
        return
    try:
        if get_ident() == probe.owner or probe.mine():
            this.queued, this.by_module = True, by_module
            torch.autograd.Variable._execution_engine.queue_callback(_own_work_ended)
    except Exception as trouble:
        probe.fail(trouble)


def _own_work_ended() -> None:
    if hooks.compiling():
        return
    try:
        if this.waits or not ((probe.on and get_ident() == probe.owner) or probe.mine()):
            return
        this.waits = True
        if this.on_device:
            probe.mark_device(_WAITS)
        else:
            probe.mark(_WAITS, probe.clock())
    except Exception as trouble:
        probe.fail(trouble)


def _begins(args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Pass | None:
    if probe.in_backward or not probe.on or not (get_ident() == probe.owner or probe.adopt()):
        return None
    probe.trained = True
    root: Any = args[0][0] if args and type(args[0]) is tuple and args[0] else None
    plain = type(root) is torch.Tensor
    on_cpu = plain and root.is_cpu
    loss = nan
    this.on_device = (
        not on_cpu and isinstance(root, torch.Tensor) and not (root.is_meta or root.is_cpu)
    )
    if probe.device_clock != "cpu" and isinstance(root, torch.Tensor) and root.is_cpu:
        probe.computes_on(None)
    if this.on_device:
        cuda_captures.note_backward()
        device_events.begin_backward(root)
    elif on_cpu and root.dim() == 0 and root.is_floating_point():
        scaled, loss = this.scaled
        if id(root) != scaled:
            loss = root.item()  # in host memory already: nothing waits
        if loss - loss != 0.0:
            loss = inf  # also for NaN, which means "not known" further on
    this.loss, this.scaled = loss, (0, nan)
    this.passes += 1
    covered = this.by_module
    this.queued = this.waits = this.by_module = False
    probe.in_backward = True
    adds_up = kwargs.get("accumulate_grad", True)
    probe.mark(_BEGINS if adds_up else _GIVES, probe.clock())
    unseen = on_cpu and this.engine_waits and not covered
    if this.on_device:
        timer = probe.device_timer
        unseen = timer is not None and timer.is_timing
    if unseen and probe.world_size > 1 and root.grad_fn is not None:
        this.handle = root.grad_fn.register_prehook(_runs_first)
    return this


def _runs_backward() -> bool:
    """Whether the calling thread is the engine's thread for this pass: the first in which a hook
    runs. With several devices there are several threads at once; hooks in the others do nothing."""
    if torch._C._current_graph_task_id() == -1:
        return False
    if this.thread[1] != this.passes:
        this.thread = (get_ident(), this.passes)
    return this.thread[0] == get_ident()


def attach(context: ProbeContext) -> None:
    """Lets the engine's thread set marks, which is needed on a GPU."""
    if hasattr(torch._C, "_current_graph_task_id"):
        context.runs_backward = _runs_backward


def scales(args: tuple[Any, ...], _: dict[str, Any]) -> float | None:
    """The hook before `GradScaler.scale`: its argument is the loss, its result is not."""
    loss: Any = args[1] if len(args) > 1 else None
    if not probe.adopt() or type(loss) is not torch.Tensor or not loss.is_cpu or loss.dim():
        return None
    return float(loss.item())


def scaled(loss: float, result: Any) -> None:
    this.scaled = (id(result), loss)


def _ends(_: _Pass, __: Any) -> None:
    probe.in_backward = False
    probe.mark(backward_ended, probe.clock(), (this.loss,))
    if this.handle is not None:
        this.handle.remove()
        this.handle = None
