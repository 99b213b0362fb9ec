"""Updates of weights: by Keras' optimizers, and what these are; and by a program's own hand."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from ...probe_context import ProbeContext
from ...step_engine import Steps
from ...step_marks import updated
from ...training_objects import Described
from . import function_calls, graph_stamps
from .tensorflow_support import eagerly, loaded, wrap

probe: ProbeContext

_MOST = 8


def patch(base_optimizer: ModuleType) -> None:
    """Wraps `apply` of Keras 3, where Keras computes with TensorFlow or torch."""
    begins = {"tensorflow": _begins, "torch": _begins_in_torch}.get(_backend())
    if begins is not None:
        wrap(base_optimizer.BaseOptimizer, "apply", begins, _ends)


def patch_legacy(optimizer: ModuleType) -> None:
    """Wraps `apply_gradients` of Keras 2 (`tf_keras`)."""
    owner = getattr(optimizer, "Optimizer", None)
    if owner is not None:
        wrap(owner, "apply_gradients", _begins, _ends)


def patch_variables(module: ModuleType) -> None:
    """Wraps `assign_sub` of variables, TensorFlow's or Keras' (which assigns a difference)."""
    for owner in ("BaseResourceVariable", "Variable"):
        if hasattr(module, owner):
            wrap(getattr(module, owner), "assign_sub", _takes_away, _taken)


def _takes_away(args: tuple[Any, ...], _: dict[str, Any]) -> None:
    """A graph that computed gradients takes something away from a weight: that is its update."""
    if not getattr(args[0], "trainable", False) or not graph_stamps.differentiates():
        return
    function_calls.noted(updates=True)
    try:
        graph_stamps.updates(graph_stamps.replica_of())
    except Exception as trouble:
        graph_stamps.fail(trouble)


def _taken(_: Any, __: Any) -> None:
    """There is nothing to tell when a graph has got its operation."""


def _backend() -> str:
    config = loaded("keras.src.backend.config") or loaded("keras.src.backend.common.backend_utils")
    backend = getattr(config, "backend", None)
    return str(backend()) if callable(backend) else "tensorflow"


def _begins(args: tuple[Any, ...], _: dict[str, Any]) -> Any:
    if not eagerly():
        function_calls.noted(updates=True)
        try:
            graph_stamps.updates(graph_stamps.replica_of())
        except Exception as trouble:
            graph_stamps.fail(trouble)
        return (args[0], False)
    if function_calls.current_call.facts is not None or not probe.adopt():
        return None
    probe.mark(Steps.update_begins, probe.clock())
    return (args[0], True)


def _begins_in_torch(args: tuple[Any, ...], _: dict[str, Any]) -> Any:
    """On torch, Keras has optimizers of its own: torch's hooks never see them."""
    if not probe.adopt():
        return None
    probe.mark(Steps.update_begins, probe.clock())
    return (args[0], True)


def _ends(token: tuple[Any, bool], _: Any) -> None:
    optimizer, runs = token
    if id(optimizer) not in probe.objects.optimizers and len(probe.objects.optimizers) < _MOST:
        probe.objects.optimizers[id(optimizer)] = _described(optimizer)
    if runs:
        probe.mark(updated, probe.clock())


def _described(optimizer: Any) -> Described:
    """By its settings; the rate of a schedule or a variable on a device is not read."""
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
