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
    moment = began
    first = dict(stamped.moments[:2])
    if INPUT in first:
        if not asked:
            mark(asks, began)
        # What the call takes before it asks for its batch is shown after it, as forward.
        moment = began + first[INPUT] - first.get(ASKS, began)
        mark(fetched, moment, (stamped.samples, stamped.tokens))
        mark(Steps.forward_begins, moment)
    elif not asked:
        mark(Steps.forward_begins, began)
    passes = 0 if updates else sum(kind == GRADIENTS for kind, _ in stamped.moments)
    if passes > 1:
        _accumulates(stamped, passes)
        return
    for kind, moment in stamped.moments:
        if kind == LOSS:
            mark(Steps.backward_begins, moment)
        elif kind == GRADIENTS:
            mark(backward_ended, moment, (stamped.loss,))
        else:
            _meets(kind, moment)
    if not stamped.trains:  # XLA compiled the rest
        mark(Steps.backward_begins, end)
        mark(backward_ended, end, (nan,))
        moment = end
    if updates:
        mark(Steps.update_begins, moment)
        mark(updated, end)


def _accumulates(stamped: Turn, passes: int) -> None:
    """Several backward passes, and no update that would tell where the turn ends: all are within
    one, as each of them would be a turn of its own else."""
    mark = probe.mark
    begun = False
    for kind, moment in stamped.moments:
        if kind == LOSS:
            mark(Steps.forward_ends if begun else Steps.gradient_begins, moment)
            mark(Steps.backward_begins, moment)
            begun = True
        elif kind == GRADIENTS and begun:
            mark(backward_ended, moment, (stamped.loss,))
            passes -= 1
            if passes:
                mark(Steps.forward_begins, moment)
            else:
                mark(backward_ended, moment, (nan,))
        else:
            _meets(kind, moment)


def _meets(kind: int, moment: int) -> None:
    """Other replicas, where it is a reduction."""
    if kind == REDUCES:
        probe.mark(Steps.call_begins, moment)
    elif kind == REDUCED:
        probe.mark(_reduced, moment)


def asks(steps: Steps, now: int) -> None:
    """A graph asks its iterator for a batch."""
    steps.fetch_begins(1, now)


def _reduced(steps: Steps, now: int) -> None:
    steps.call_ends(now, _SITE, recurs=False)
