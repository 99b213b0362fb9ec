"""Checkpoints: `torch.save` and its distributed cousin, and what is gathered for them."""

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
    wrap(serialization, "save", _begins, _ends)


def patch_distributed(state_dict_saver: ModuleType) -> None:
    """Wraps `torch.distributed.checkpoint.save`."""
    wrap(state_dict_saver, "save", _begins, _ends)


def patch_state_dict(state_dict: ModuleType) -> None:
    """Wraps what gathers a state from all ranks, or spreads it: an optimizer that has none yet is
    stepped there, by nothing, and that is no training."""
    for name in ("state_dict", "model_state_dict", "optimizer_state_dict"):
        wrap(state_dict, f"get_{name}", _begins, _gathered)
        wrap(state_dict, f"set_{name}", _begins, _gathered)


def _begins(_: tuple[Any, ...], __: dict[str, Any]) -> int | None:
    # Only at the top of the loop: inside a collective or a loader it is a way to pack objects.
    if not probe.mine() or probe.steps.ledger.outer:
        return None
    now = probe.clock()
    probe.mark(pause_begins, now, (layout.CHECKPOINT,))
    return now


def _ends(began: int, _: Any) -> None:
    now = probe.clock()
    probe.mark(pause_ends, now)
    if now - began >= _WORTH_AN_EVENT_NS:
        probe.event(layout.SAVED, began, now - began)


def _gathered(_: int, __: Any) -> None:
    probe.mark(pause_ends, probe.clock())
