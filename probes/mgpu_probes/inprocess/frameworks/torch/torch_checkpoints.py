"""Wraps saving of checkpoints (`torch.save`, `torch.distributed.checkpoint`) and gathering of state
dictionaries, so that their time is not counted as training."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from ... import layout
from ...probe_context import ProbeContext
from ...step_marks import pause_begins, pause_ends
from .torch_support import wrap

probe: ProbeContext

_WORTH_AN_EVENT_NS = 1_000_000
"""A save of 1 ms is an event; a shorter one only counts in its step."""


def patch(serialization: ModuleType) -> None:
    """Wraps `torch.save` before torch re-exports it."""
    wrap(serialization, "save", _save_begins, _save_ends)


def patch_distributed(state_dict_saver: ModuleType) -> None:
    """Wraps `torch.distributed.checkpoint.save`."""
    wrap(state_dict_saver, "save", _save_begins, _save_ends)


def patch_state_dict(state_dict: ModuleType) -> None:
    """Wraps the functions that gather state dictionaries from all ranks or distribute them. They
    may step an optimizer without gradients, to create its state; that is no training step."""
    for name in ("state_dict", "model_state_dict", "optimizer_state_dict"):
        wrap(state_dict, f"get_{name}", _save_begins, _state_dict_ends)
        wrap(state_dict, f"set_{name}", _save_begins, _state_dict_ends)


def _save_begins(_: tuple[Any, ...], __: dict[str, Any]) -> int | None:
    # Only in the loop itself: inside a collective or a loader, `torch.save` serializes objects.
    if not probe.mine() or probe.steps.ledger.outer:
        return None
    now = probe.clock()
    probe.mark(pause_begins, now, (layout.CHECKPOINT,))
    return now


def _save_ends(began: int, _: Any) -> None:
    now = probe.clock()
    probe.mark(pause_ends, now)
    if now - began >= _WORTH_AN_EVENT_NS:
        probe.event(layout.SAVED, began, now - began)


def _state_dict_ends(_: int, __: Any) -> None:
    probe.mark(pause_ends, probe.clock())
