"""Optimizer updates, by torch's own hooks for all optimizers, and gradient scalers around them."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from .. import births
from ..rank import probe
from .common import guarded, wrap


def patch(optimizer: ModuleType) -> None:
    """Registers hooks before and after every optimizer's step."""
    optimizer.register_optimizer_step_pre_hook(_before)
    optimizer.register_optimizer_step_post_hook(_after)
    wrap(optimizer.Optimizer, "__init__", _made, _done)


def patch_scaler(grad_scaler: ModuleType) -> None:
    """Wraps `GradScaler.step`, which may skip the optimizer."""
    wrap(grad_scaler.GradScaler, "step", _scaler_begins, _scaler_ends)


@guarded
def _before(optimizer: Any, *_: Any) -> None:
    if probe.adopt():
        births.saw_optimizer(optimizer)
        probe.steps.update_begins(probe.clock())


@guarded
def _after(optimizer: Any, *_: Any) -> None:
    if probe.mine():
        probe.steps.update_ends(probe.clock(), id(optimizer))


def _made(_: tuple[Any, ...], __: dict[str, Any]) -> None:
    probe.steps.optimizers_exist = True


def _done(_: Any, __: Any) -> None:
    """Nothing follows."""


def _scaler_begins(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
    if not probe.adopt():
        return None
    optimizer = args[1] if len(args) > 1 else kwargs.get("optimizer")
    probe.steps.update_begins(probe.clock())
    return id(optimizer)


def _scaler_ends(optimizer: int, _: Any) -> None:
    probe.steps.update_ends(probe.clock(), optimizer, scaler=True)
