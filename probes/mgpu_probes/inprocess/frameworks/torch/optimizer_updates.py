"""Marks optimizer updates (by torch's hooks for all optimizers), the gradient scalers around them,
and the clipping of gradients before them."""

from __future__ import annotations

from threading import get_ident
from types import ModuleType
from typing import Any

from ... import wrap as hooks
from ...probe_context import ProbeContext
from ...step_engine import Steps
from ...step_marks import Mark, scaler_update_begins, scaler_update_ends
from . import autograd, cuda_captures, device_events
from .torch_support import ignore_at_rest, wrap
from .weight_digests import weights

probe: ProbeContext

_UPDATE = Steps.update_begins
_MARKS_KEPT = 256
updated_marks: dict[int, Mark] = {}
"""The mark that ends an update, by the id of the optimizer."""
handles: list[Any] = []
"""torch's handles of the two hooks."""


def patch(optimizer: ModuleType) -> None:
    """Registers hooks before and after every optimizer's step."""
    handles[:] = (
        optimizer.register_optimizer_step_pre_hook(before_update),
        optimizer.register_optimizer_step_post_hook(after_update),
    )
    wrap(optimizer.Optimizer, "__init__", _made, _done)


def patch_scaler(grad_scaler: ModuleType) -> None:
    """Wraps `GradScaler.step`, which may skip the optimizer, and `scale`, which hides the loss."""
    wrap(grad_scaler.GradScaler, "scale", autograd.scales, autograd.scaled)
    wrap(grad_scaler.GradScaler, "step", _scaler_begins, _scaler_ends)


def patch_clipping(clip_grad: ModuleType) -> None:
    """Wraps `clip_grad_norm_` and `clip_grad_value_` before `torch.nn.utils` re-exports them."""
    for name in ("clip_grad_norm_", "clip_grad_value_"):
        wrap(clip_grad, name, _clips, _clipped, raised_at_rest=ignore_at_rest)


def before_update(optimizer: Any, *_: Any) -> None:
    if hooks.compiling():
        return
    try:
        if probe.on and (get_ident() == probe.owner or probe.mine() or probe.adopt()):
            if id(optimizer) not in probe.objects.optimizers:
                probe.objects.note_optimizer(optimizer)
                weights.follow(optimizer)
                known = probe.objects.optimizers.get(id(optimizer))
                if known is not None:
                    device_events.trains_on(known.facts["devices"])
                if not autograd.this.passes:
                    device_events.begin_update(optimizer)
            probe.mark(_UPDATE, probe.clock())
            if probe.device_timer is not None:
                device_events.skips_update(optimizer)
    except Exception as trouble:
        probe.fail(trouble)


def after_update(optimizer: Any, *_: Any) -> None:
    if hooks.compiling():
        return
    try:
        if probe.on and (get_ident() == probe.owner or probe.mine()):
            weights.updates += 1
            if probe.accelerator is not None:
                cuda_captures.note_update()
            which = id(optimizer)
            probe.mark(updated_marks.get(which) or _updates(which), probe.clock())
    except Exception as trouble:
        probe.fail(trouble)


def _updates(which: int) -> Mark:
    def updated(steps: Steps, now: int) -> None:
        steps.update_ends(now, which)

    if len(updated_marks) >= _MARKS_KEPT:
        updated_marks.clear()
    updated_marks[which] = updated
    return updated


def _made(_: tuple[Any, ...], __: dict[str, Any]) -> None:
    probe.steps.optimizers_exist = True


def _done(_: Any, __: Any) -> None:
    """Nothing is left to do after the constructor."""


def _scaler_begins(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
    if not probe.adopt():
        return None
    optimizer = args[1] if len(args) > 1 else kwargs.get("optimizer")
    probe.mark(scaler_update_begins, probe.clock())
    return id(optimizer)


def _scaler_ends(optimizer: int, _: Any) -> None:
    probe.mark(scaler_update_ends, probe.clock(), (optimizer,))


def _clips(_: tuple[Any, ...], __: dict[str, Any]) -> bool | None:
    if not probe.mine():
        return None
    probe.mark(Steps.clipping_begins, probe.clock())
    return True


def _clipped(_: bool, __: Any) -> None:
    probe.mark(Steps.clipping_ends, probe.clock())
