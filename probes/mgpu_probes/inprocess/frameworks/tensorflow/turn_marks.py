"""Turns the stamps of one turn of the loop into marks of the step engine."""

from __future__ import annotations

from math import nan

from ...probe_context import ProbeContext
from ...step_engine import Steps
from ...step_marks import backward_ended, fetched, updated
from ...step_segments import Call
from .stamp_timeline import FETCH_BEGINS, GRADIENTS, INPUT, LOSS, REDUCE_BEGINS, REDUCE_ENDS, Turn

probe: ProbeContext

_SITE: Call = ("tensorflow", 0, "all_reduce")


def mark_turn(stamped: Turn, began: int, end: int, updates: bool, *, first_mark_set: bool) -> None:
    """Sets the marks of a turn from `began` to `end` (monotonic ns). `first_mark_set`: its first
    mark, of a fetch or of the forward pass, is set already."""
    mark = probe.mark
    moment = began
    first = dict(stamped.moments[:2])
    if INPUT in first:
        if not first_mark_set:
            mark(fetch_begins, began)
        # The time of the call before it fetches its batch is counted after the fetch, as forward.
        moment = began + first[INPUT] - first.get(FETCH_BEGINS, began)
        mark(fetched, moment, (stamped.samples, stamped.tokens))
        mark(Steps.forward_begins, moment)
    elif not first_mark_set:
        mark(Steps.forward_begins, began)
    passes = 0 if updates else sum(kind == GRADIENTS for kind, _ in stamped.moments)
    if passes > 1:
        _mark_accumulation(stamped, passes)
        return
    for kind, moment in stamped.moments:
        if kind == LOSS:
            mark(Steps.backward_begins, moment)
        elif kind == GRADIENTS:
            mark(backward_ended, moment, (stamped.loss,))
        else:
            _mark_reduction(kind, moment)
    if not stamped.trains:  # XLA compiled the rest
        mark(Steps.backward_begins, end)
        mark(backward_ended, end, (nan,))
        moment = end
    if updates:
        mark(Steps.update_begins, moment)
        mark(updated, end)


def _mark_accumulation(stamped: Turn, passes: int) -> None:
    """Marks several backward passes without an update as one pass: the engine would count each as a
    step of its own."""
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
            _mark_reduction(kind, moment)


def _mark_reduction(kind: int, moment: int) -> None:
    """Sets the mark of a stamp if it belongs to a reduction over replicas."""
    if kind == REDUCE_BEGINS:
        probe.mark(Steps.call_begins, moment)
    elif kind == REDUCE_ENDS:
        probe.mark(_reduced, moment)


def fetch_begins(steps: Steps, now: int) -> None:
    """The mark at which a graph fetches a batch from its iterator."""
    steps.fetch_begins(1, now)


def _reduced(steps: Steps, now: int) -> None:
    steps.call_ends(now, _SITE, recurs=False)
