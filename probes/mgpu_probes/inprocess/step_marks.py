"""The marks that hooks set on a training loop, with their moments, through `ProbeContext.mark`.

A mark is a method of `Steps`, or a function that is called with the engine and the moment and calls
such a method. It is identified by the function object, so it must not be created anew per step. The
ones here carry data or are shared by frameworks. `APART` holds marks that are not part of an
ordinary step (evaluation, checkpoints, the end of a data set): the fast path hands them to the
engine.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import layout
from .step_engine import Steps

Data = tuple[Any, ...]
"""The data of a mark, beside its moment."""
Mark = Callable[..., None]
"""Called with the engine, the moment (monotonic ns) and its data."""


def fetched(steps: Steps, now: int, samples: int, tokens: int) -> None:
    """A fetch returned a batch of `samples` and `tokens`; 0: unknown."""
    steps.fetch_ends(now, samples, tokens)


def batch_copied(steps: Steps, now: int) -> None:
    """The batch was copied to the device since it was fetched; only the device knows the
    duration."""
    if not steps.ledger.outer:
        steps.ledger.explain(layout.TRANSFER, now)


def backward_ended(steps: Steps, now: int, loss: float) -> None:
    """The backward pass from `loss` ends."""
    steps.backward_ends(now, loss=loss)


def updated(steps: Steps, now: int) -> None:
    """The only optimizer of the loop has updated the weights."""
    steps.update_ends(now, 1)


def update_skipped(steps: Steps, now: int) -> None:
    """The only optimizer of the loop has skipped its update."""
    steps.update_ends(now, 1, scaler=True)


def fetch_found_end(steps: Steps, now: int) -> None:
    """The loader has no more batches."""
    steps.fetch_ends(now, got=False)


def evaluation_fetch_begins(steps: Steps, now: int, loader: int) -> None:
    """The loop asks for a batch while gradients are disabled."""
    steps.fetch_begins(loader, now, training=False)


def evaluation_forward_begins(steps: Steps, now: int) -> None:
    """A wrapped model is called while gradients are disabled."""
    steps.forward_begins(now, training=False)


def evaluation_forward_ends(steps: Steps, now: int) -> None:
    """The model that was called while gradients are disabled returns."""
    steps.forward_ends(now, training=False)


def loader_starts(steps: Steps, now: int) -> None:
    """A loader starts an epoch: it starts its workers, or shuffles."""
    steps.waits_for_input(now)


def loader_started(steps: Steps, now: int) -> None:
    """The loader is ready for fetches."""
    steps.got_input(now)


def scaler_update_begins(steps: Steps, now: int) -> None:
    """A gradient scaler's step begins: it decides whether its optimizer steps."""
    steps.update_begins(now)


def scaler_update_ends(steps: Steps, now: int, optimizer: int) -> None:
    """The gradient scaler's step ends."""
    steps.update_ends(now, optimizer, scaler=True)


def _begins(phase: int) -> Mark:
    def phase_begins(steps: Steps, now: int) -> None:
        steps.phase_begins(phase, now)

    return phase_begins


PHASE_BEGINS: dict[str, Mark] = {
    name: _begins(phase)
    for phase, name in enumerate(layout.PHASES)
    if phase not in (layout.COMMUNICATION, layout.OTHER)
}
"""By the name of a phase that a program marks itself: the mark of its beginning."""


def pause_begins(steps: Steps, now: int, phase: int) -> None:
    """The loop begins to save a checkpoint or to evaluate (`phase`)."""
    steps.ledger.enter(phase, now)


def pause_ends(steps: Steps, now: int) -> None:
    """The pause ends; training continues."""
    steps.ledger.leave(now)


APART: frozenset[Mark] = frozenset(
    {
        fetch_found_end,
        evaluation_fetch_begins,
        evaluation_forward_begins,
        evaluation_forward_ends,
        loader_starts,
        loader_started,
        scaler_update_begins,
        scaler_update_ends,
        pause_begins,
        pause_ends,
        PHASE_BEGINS["checkpoint"],
        PHASE_BEGINS["evaluation"],
    }
)
