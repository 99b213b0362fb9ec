"""One turn that graphs stamped, mark by mark."""

from __future__ import annotations

from math import nan

from ...probe_context import ProbeContext
from ...step_engine import Steps
from ...step_marks import backward_ended, fetched, updated
from ...step_segments import Call
from .stamp_timeline import ASKS, GRADIENTS, INPUT, LOSS, REDUCED, REDUCES, Turn

probe: ProbeContext

_SITE: Call = ("tensorflow", 0, "all_reduce")


def turn(stamped: Turn, began: int, end: int, updates: bool, *, asked: bool) -> None:
    """Sets the marks of a turn from `began` to `end` (monotonic ns); `asked`: the first one, that
    of a fetch or of the forward pass, was set as it began."""
    mark = probe.mark
    at = began
    first = dict(stamped.moments[:2])
    if INPUT in first:
        if not asked:
            mark(asks, began)
        # What the call takes before it asks for its batch is shown after it, as forward.
        at = began + first[INPUT] - first.get(ASKS, began)
        mark(fetched, at, (stamped.samples, stamped.tokens))
        mark(Steps.forward_begins, at)
    elif not asked:
        mark(Steps.forward_begins, began)
    passes = 0 if updates else sum(kind == GRADIENTS for kind, _ in stamped.moments)
    if passes > 1:
        _accumulates(stamped, passes)
        return
    for kind, at in stamped.moments:
        if kind == LOSS:
            mark(Steps.backward_begins, at)
        elif kind == GRADIENTS:
            mark(backward_ended, at, (stamped.loss,))
        else:
            _meets(kind, at)
    if not stamped.trains:  # XLA compiled the rest
        mark(Steps.backward_begins, end)
        mark(backward_ended, end, (nan,))
        at = end
    if updates:
        mark(Steps.update_begins, at)
        mark(updated, end)


def _accumulates(stamped: Turn, passes: int) -> None:
    """Several backward passes, and no update that would tell where the turn ends: all are within
    one, as each of them would be a turn of its own else."""
    mark = probe.mark
    begun = False
    for kind, at in stamped.moments:
        if kind == LOSS:
            mark(Steps.forward_ends if begun else Steps.gradient_begins, at)
            mark(Steps.backward_begins, at)
            begun = True
        elif kind == GRADIENTS and begun:
            mark(backward_ended, at, (stamped.loss,))
            passes -= 1
            if passes:
                mark(Steps.forward_begins, at)
            else:
                mark(backward_ended, at, (nan,))
        else:
            _meets(kind, at)


def _meets(kind: int, at: int) -> None:
    """Other replicas, where it is a reduction."""
    if kind == REDUCES:
        probe.mark(Steps.call_begins, at)
    elif kind == REDUCED:
        probe.mark(_reduced, at)


def asks(steps: Steps, now: int) -> None:
    """A graph asks its iterator for a batch."""
    steps.fetch_begins(1, now)


def _reduced(steps: Steps, now: int) -> None:
    steps.call_ends(now, _SITE, recurs=False)
