"""Wraps saving of checkpoints and evaluation, so that their time is not counted as training."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from ... import layout
from ...probe_context import ProbeContext
from ...step_marks import pause_begins, pause_ends
from . import function_calls
from .tensorflow_support import is_eager, wrap

probe: ProbeContext

_WORTH_AN_EVENT_NS = 1_000_000
"""A save of 1 ms is an event; a shorter one only counts in its step."""


def patch_checkpoint(checkpoint: ModuleType) -> None:
    """Wraps the saver behind `tf.train.Checkpoint`, its manager and the SavedModel."""
    wrap(checkpoint.TrackableSaver, "save", _save_begins, _save_ends)


def patch_keras(saving_api: ModuleType) -> None:
    """Wraps the functions behind `model.save` and `save_weights`."""
    for name in ("save_model", "save_weights"):
        wrap(saving_api, name, _save_begins, _save_ends)


def patch_trainer(trainer: ModuleType) -> None:
    """Wraps Keras' `evaluate`, which `fit` calls for validation."""
    wrap(trainer.TensorFlowTrainer, "evaluate", _evaluation_begins, _evaluation_ends)


def _save_begins(_: tuple[Any, ...], __: dict[str, Any]) -> int | None:
    return _pause_begins(layout.CHECKPOINT)


def _save_ends(began: int, _: Any) -> None:
    now = probe.clock()
    probe.mark(pause_ends, now)
    if now - began >= _WORTH_AN_EVENT_NS:
        probe.event(layout.SAVED, began, now - began)


def _evaluation_begins(_: tuple[Any, ...], __: dict[str, Any]) -> int | None:
    return _pause_begins(layout.EVALUATION)


def _evaluation_ends(began: int, _: Any) -> None:
    now = probe.clock()
    probe.mark(pause_ends, now)
    probe.event(layout.EVALUATED, began, now - began)


def _pause_begins(phase: int) -> int | None:
    """Begins a pause in the training loop and returns its moment, monotonic ns. None if this is not
    the loop itself: inside a call, a graph or another pause."""
    if not probe.mine() or function_calls.current_call.facts is not None or not is_eager():
        return None
    if probe.steps.ledger.outer:
        return None
    now = probe.clock()
    probe.mark(pause_begins, now, (phase,))
    return now
