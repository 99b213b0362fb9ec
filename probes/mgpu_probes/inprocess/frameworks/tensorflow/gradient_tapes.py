"""Gradient tapes: where the forward pass ends, and where the gradients are there."""

from __future__ import annotations

import functools
from collections.abc import Callable
from math import inf, nan
from types import ModuleType
from typing import Any

from ...probe_context import ProbeContext
from ...step_engine import Steps
from ...step_marks import backward_ended
from ...wrap import hidden, wrapped
from . import function_calls, graph_stamps
from .stamp_timeline import GRADIENTS, LOSS, VALUE
from .tensorflow_support import eagerly, tensorflow, unseen

probe: ProbeContext

_GIVEN = 3
"""Positional arguments from which on the caller says himself what backward begins with."""


def patch(backprop: ModuleType) -> None:
    """Wraps `GradientTape.gradient`."""
    owner = backprop.GradientTape
    original = owner.gradient
    if wrapped(original):
        return

    @functools.wraps(original)
    def gradient(*args: Any, **kwargs: Any) -> Any:
        try:
            if not probe.on:
                return original(*args, **kwargs)
            return (_runs if eagerly() else _is_traced)(original, args, kwargs)
        except BaseException as error:
            unseen(error)
            raise

    owner.gradient = hidden(gradient)


def _runs(original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A backward pass at once, outside of graphs."""
    begun = function_calls.current_call.facts is None and not probe.in_backward and probe.adopt()
    if not begun:
        return original(*args, **kwargs)
    try:
        function_calls.noted(trains=True)
        probe.trained = probe.in_backward = True
        probe.mark(Steps.backward_begins, probe.clock())
    except Exception as trouble:
        probe.fail(trouble)
    try:
        return original(*args, **kwargs)
    except BaseException as error:
        unseen(error)
        raise
    finally:
        try:
            probe.in_backward = False
            if probe.on:
                loss = _value(_target(args, kwargs))
                probe.mark(backward_ended, probe.clock(), (loss,))
        except Exception as trouble:
            probe.fail(trouble)


def _is_traced(original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """One that a graph will run: stamped before and after."""
    function_calls.noted(trains=True)
    target = _target(args, kwargs)
    replica = -1
    try:
        if graph_stamps.graph() is not None:
            replica = graph_stamps.replica_of()
            moment = graph_stamps.stamp(LOSS, target, replica)
            if moment is not None and "output_gradients" not in kwargs and len(args) <= _GIVEN:
                kwargs = kwargs | _first_gradient(target, moment)
    except Exception as trouble:
        graph_stamps.fail(trouble)
    gradients = original(*args, **kwargs)
    try:
        if graph_stamps.graph() is not None:
            graph_stamps.stamp(GRADIENTS, gradients, replica)
            # A loss on a GPU would have to be waited for.
            if _is_loss(target) and not tensorflow().config.list_logical_devices("GPU"):
                graph_stamps.number(VALUE, target, replica)
    except Exception as trouble:
        graph_stamps.fail(trouble)
    return gradients


def _first_gradient(target: Any, moment: Any) -> dict[str, Any]:
    """The one with which backward begins anyway, 1, made once the loss is stamped: the stamp would
    else be taken whenever a thread has nothing better to do."""
    if not _is_loss(target):
        return {}
    tf = tensorflow()
    with tf.control_dependencies([moment]):
        return {"output_gradients": tf.ones_like(target)}


def _target(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return args[1] if len(args) > 1 else kwargs.get("target")


def _is_loss(value: Any) -> bool:
    """Whether it is one number."""
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    is_scalar = getattr(shape, "rank", None) == 0 and getattr(dtype, "is_floating", False)
    return bool(is_scalar) and hasattr(value, "op" if not eagerly() else "numpy")


def _value(target: Any) -> float:
    """Of an eager loss in host memory; NaN: unknown."""
    if not _is_loss(target) or "CPU" not in str(getattr(target, "device", "")):
        return nan
    value = float(target)
    return value if value - value == 0.0 else inf
