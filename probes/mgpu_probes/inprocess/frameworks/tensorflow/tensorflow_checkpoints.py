"""Checkpoints and evaluation: time in which nothing is learned."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from ... import layout
from ...probe_context import ProbeContext
from ...step_marks import pause_begins, pause_ends
from . import function_calls
from .tensorflow_support import eagerly, wrap

probe: ProbeContext

_WORTH_AN_EVENT_NS = 1_000_000
"""A save of 1 ms is an event; a shorter one only counts in its step."""


def patch_checkpoint(checkpoint: ModuleType) -> None:
    """Wraps the saver behind `tf.train.Checkpoint`, its manager and the SavedModel."""
    wrap(checkpoint.TrackableSaver, "save", _saves, _saved)


def patch_keras(saving_api: ModuleType) -> None:
    """Wraps the functions behind `model.save` and `save_weights`."""
    for name in ("save_model", "save_weights"):
        wrap(saving_api, name, _saves, _saved)


def patch_trainer(trainer: ModuleType) -> None:
    """Wraps Keras' `evaluate`, which `fit` calls for validation."""
    wrap(trainer.TensorFlowTrainer, "evaluate", _evaluates, _evaluated)


def _saves(_: tuple[Any, ...], __: dict[str, Any]) -> int | None:
    return _enters(layout.CHECKPOINT)


def _saved(began: int, _: Any) -> None:
    now = probe.clock()
    probe.mark(pause_ends, now)
    if now - began >= _WORTH_AN_EVENT_NS:
        probe.event(layout.SAVED, began, now - began)


def _evaluates(_: tuple[Any, ...], __: dict[str, Any]) -> int | None:
    return _enters(layout.EVALUATION)


def _evaluated(began: int, _: Any) -> None:
    now = probe.clock()
    probe.mark(pause_ends, now)
    probe.event(layout.EVALUATED, began, now - began)


def _enters(phase: int) -> int | None:
    """Only at the top of the loop; marks inside it are of no step."""
    if not probe.mine() or function_calls.current_call.facts is not None or not eagerly():
        return None
    if probe.steps.ledger.outer:
        return None
    now = probe.clock()
    probe.mark(pause_begins, now, (phase,))
    return now
