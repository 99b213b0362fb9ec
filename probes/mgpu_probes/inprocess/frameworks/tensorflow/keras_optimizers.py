"""Wraps updates of weights, by Keras' optimizers or by `assign_sub`, and describes the
optimizers."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from ...probe_context import ProbeContext
from ...step_engine import Steps
from ...step_marks import updated
from ...training_objects import Described
from . import function_calls, graph_stamps
from .tensorflow_support import is_eager, loaded_module, wrap

probe: ProbeContext

_MOST = 8


def patch(base_optimizer: ModuleType) -> None:
    """Wraps `apply` of Keras 3, where Keras computes with TensorFlow or torch."""
    begins = {"tensorflow": _update_begins, "torch": _torch_update_begins}.get(_backend())
    if begins is not None:
        wrap(base_optimizer.BaseOptimizer, "apply", begins, _update_ends)


def patch_legacy(optimizer: ModuleType) -> None:
    """Wraps `apply_gradients` of Keras 2 (`tf_keras`), also of its older optimizers."""
    for name in ("Optimizer", "OptimizerV2"):
        if hasattr(optimizer, name):
            wrap(getattr(optimizer, name), "apply_gradients", _update_begins, _update_ends)


def patch_variables(module: ModuleType) -> None:
    """Wraps `assign_sub` of variables, TensorFlow's or Keras' (which assigns a difference)."""
    for owner in ("BaseResourceVariable", "Variable"):
        if hasattr(module, owner):
            wrap(getattr(module, owner), "assign_sub", _assign_sub_begins, _ignore)


def _assign_sub_begins(args: tuple[Any, ...], _: dict[str, Any]) -> None:
    """Notes an update: a graph that computed gradients subtracts from a trainable variable."""
    if not getattr(args[0], "trainable", False) or not graph_stamps.has_gradients():
        return
    function_calls.note_operations(updates=True)
    try:
        graph_stamps.note_update(graph_stamps.current_replica())
    except Exception as trouble:
        graph_stamps.disable(trouble)


def _ignore(_: Any, __: Any) -> None:
    """Nothing is left to do once the graph has the operation."""


def _backend() -> str:
    config = loaded_module("keras.src.backend.config") or loaded_module(
        "keras.src.backend.common.backend_utils"
    )
    backend = getattr(config, "backend", None)
    return str(backend()) if callable(backend) else "tensorflow"


def _update_begins(args: tuple[Any, ...], _: dict[str, Any]) -> Any:
    if not is_eager():
        function_calls.note_operations(updates=True)
        try:
            graph_stamps.note_update(graph_stamps.current_replica())
        except Exception as trouble:
            graph_stamps.disable(trouble)
        return (args[0], False)
    if function_calls.current_call.facts is not None or not probe.adopt():
        return None
    probe.mark(Steps.update_begins, probe.clock())
    return (args[0], True)


def _torch_update_begins(args: tuple[Any, ...], _: dict[str, Any]) -> Any:
    """Marks an update by Keras on torch: its optimizers are not torch's, so torch's hooks miss
    it."""
    if not probe.adopt():
        return None
    probe.mark(Steps.update_begins, probe.clock())
    return (args[0], True)


def _update_ends(token: tuple[Any, bool], _: Any) -> None:
    optimizer, runs = token
    if id(optimizer) not in probe.objects.optimizers and len(probe.objects.optimizers) < _MOST:
        probe.objects.optimizers[id(optimizer)] = _describe(optimizer)
    if runs:
        probe.mark(updated, probe.clock())


def _describe(optimizer: Any) -> Described:
    """The optimizer's class, learning rate and parameters. A rate that is a schedule or a variable
    is not read, because that could wait for a device."""
    variables = list(getattr(optimizer, "_trainable_variables", None) or ())
    counted = [_elements(variable.shape) for variable in variables]
    rate = getattr(optimizer, "_learning_rate", None)
    fixed_rate = float(rate) if isinstance(rate, (int, float)) else None
    facts = {
        "class": type(optimizer).__name__,
        "lr": fixed_rate,
        "lr_default": None,
        "parameters": sum(counted) if counted else None,
        "dtype": str(variables[0].dtype) if variables else None,
        "device": None,
    }
    return Described(optimizer, facts, lambda _: {"lr_now": fixed_rate})


def _elements(shape: Any) -> int:
    total = 1
    for size in shape:
        total *= int(size)
    return total
