"""Wraps `GradientTape.gradient`: there the forward pass ends and the backward pass runs."""

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
from .tensorflow_support import hide_caller_frame, is_eager, tensorflow

probe: ProbeContext

_BEFORE_OUTPUT_GRADIENTS = 3
"""The position of `output_gradients` among the arguments: with more, the caller gives it."""


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
            return (_differentiate_eagerly if is_eager() else _stamp_traced_gradient)(
                original, args, kwargs
            )
        except BaseException as error:
            hide_caller_frame(error)
            raise

    owner.gradient = hidden(gradient)


def _differentiate_eagerly(
    original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Runs a backward pass outside of graphs, between two marks."""
    begun = function_calls.current_call.facts is None and not probe.in_backward and probe.adopt()
    if not begun:
        return original(*args, **kwargs)
    try:
        function_calls.note_operations(trains=True)
        probe.trained = probe.in_backward = True
        probe.mark(Steps.backward_begins, probe.clock())
    except Exception as trouble:
        probe.fail(trouble)
    try:
        return original(*args, **kwargs)
    except BaseException as error:
        hide_caller_frame(error)
        raise
    finally:
        try:
            probe.in_backward = False
            if probe.on:
                loss = _loss_value(_target(args, kwargs))
                probe.mark(backward_ended, probe.clock(), (loss,))
        except Exception as trouble:
            probe.fail(trouble)


def _stamp_traced_gradient(
    original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Traces a backward pass into a graph, with a stamp before and after it."""
    function_calls.note_operations(trains=True)
    target = _target(args, kwargs)
    replica = -1
    try:
        if graph_stamps.stampable_graph() is not None:
            replica = graph_stamps.current_replica()
            moment = graph_stamps.stamp(LOSS, target, replica)
            if (
                moment is not None
                and "output_gradients" not in kwargs
                and len(args) <= _BEFORE_OUTPUT_GRADIENTS
            ):
                kwargs = kwargs | _first_gradient(target, moment)
    except Exception as trouble:
        graph_stamps.disable(trouble)
    gradients = original(*args, **kwargs)
    try:
        if graph_stamps.stampable_graph() is not None:
            graph_stamps.stamp(GRADIENTS, gradients, replica)
            # A loss on a GPU would have to be waited for.
            if _is_loss(target) and not tensorflow().config.list_logical_devices("GPU"):
                graph_stamps.send_number(VALUE, target, replica)
    except Exception as trouble:
        graph_stamps.disable(trouble)
    return gradients


def _first_gradient(target: Any, moment: Any) -> dict[str, Any]:
    """The gradient 1 with which the backward pass starts anyway, made to wait for the loss's stamp:
    otherwise a thread would take the stamp at any later time."""
    if not _is_loss(target):
        return {}
    tf = tensorflow()
    with tf.control_dependencies([moment]):
        return {"output_gradients": tf.ones_like(target)}


def _target(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return args[1] if len(args) > 1 else kwargs.get("target")


def _is_loss(value: Any) -> bool:
    """Whether it is a scalar floating-point tensor, eager or in a graph, as the mode is now."""
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    is_scalar = getattr(shape, "rank", None) == 0 and getattr(dtype, "is_floating", False)
    return bool(is_scalar) and hasattr(value, "op" if not is_eager() else "numpy")


def _loss_value(target: Any) -> float:
    """The value of an eager loss in host memory; NaN: unknown, infinite: the loss is not finite."""
    if not _is_loss(target) or "CPU" not in str(getattr(target, "device", "")):
        return nan
    value = float(target)
    return value if value - value == 0.0 else inf
