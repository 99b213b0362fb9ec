"""Calls of `tf.function`s from the training loop: what a call that trains means, mark by mark.

Whether a function trains is seen while it is traced: a tape is asked for gradients in it, an
optimizer applies them. What its graphs stamped is told when the call returns. What XLA compiles
cannot be stamped: such a call is one piece, and counts as forward.
"""

from __future__ import annotations

import functools
from math import nan
from threading import Lock, get_ident
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from ..pieces import Call
from ..rank import probe
from ..steps import Steps
from ..stride import backward_ended, fetched
from ..wrap import hidden, wrapped
from . import replicas, tracing
from .common import eagerly, tensorflow, unseen
from .timeline import ASKS, GRADIENTS, INPUT, LOSS, REDUCED, REDUCES, Layout, Turn, turns

_SITE: Call = ("tensorflow", 0, "all_reduce")
_MOST_ARRIVALS = 4096
"""Of one call; what more there are is not told."""


class Known:
    """What is known of one `tf.function`."""

    __slots__ = ("fetches", "trains", "updates")

    def __init__(self) -> None:
        self.trains = self.updates = self.fetches = False
        """It computes gradients; applies them; asks an iterator for its batch itself."""


class _Call:
    """The call from the loop that is under way."""

    known: Known | None = None
    """None: there is no such call."""
    began = 0
    asked = False
    """Its first mark was set as it began."""
    compiled = 0
    """Calls of functions that XLA compiles, in all threads."""
    trained = jit = False
    """Gradients were computed in this process so far; within what XLA compiles."""


this = _Call()
_known: WeakKeyDictionary[Any, Known] = WeakKeyDictionary()
_arrived: list[tuple[Layout, list[float]]] = []
_compiled = Lock()


def patch(polymorphic_function: ModuleType) -> None:
    """Wraps the call of every `tf.function`."""
    function = polymorphic_function.Function
    original = function.__call__
    if wrapped(original):
        return

    @functools.wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            compiles, opened = _begins(self)
        except Exception as trouble:
            probe.fail(trouble)
            compiles = opened = False
        try:
            result = original(self, *args, **kwargs)
        except BaseException as error:
            unseen(error)
            _ends(compiles, opened, returned=False)
            raise
        _ends(compiles, opened, returned=True)
        return result

    function.__call__ = hidden(call)
    tracing.this.allowed = _stamps
    tracing.this.send = _arrives


def noted(*, trains: bool = False, updates: bool = False, fetches: bool = False) -> None:
    """Something of a training runs, or was traced in the call that is under way."""
    if trains and not this.trained:
        this.trained = True
        probe.thread_clock = lambda: nan  # the work is done by threads of TensorFlow's own
    this.jit |= trains and this.compiled > 0
    known = this.known
    if known is not None:
        known.trains |= trains
        known.updates |= updates
        known.fetches |= fetches


def _stamps() -> bool:
    return this.known is not None and not this.compiled


def _arrives(sent: Layout, values: list[float]) -> None:
    if this.known is not None and len(_arrived) < _MOST_ARRIVALS:
        _arrived.append((sent, values))


def _begins(function: Any) -> tuple[bool, bool]:
    """Whether XLA compiles it, and whether it is a call from the loop."""
    compiles = bool(getattr(function, "_jit_compile", False))
    if compiles:
        with _compiled:
            this.compiled += 1
    if not probe.on or this.known is not None or not eagerly() or _never_traced():
        return compiles, False
    if get_ident() != probe.owner and not probe.adopt():
        return compiles, False
    known = _known.get(function)
    if known is None:
        known = _known[function] = Known()
    _arrived.clear()
    this.known, this.began, this.asked = known, probe.clock(), False
    if known.trains or known.updates:
        this.asked = True
        first = Steps.forward_begins if known.trains else Steps.update_begins
        probe.stride.mark(_asks if known.fetches else first, this.began)
    return compiles, True


def _never_traced() -> bool:
    """Whether the program has functions run as they are, line by line."""
    return bool(tensorflow().config.functions_run_eagerly())


def _ends(compiles: bool, opened: bool, *, returned: bool) -> None:
    if compiles:
        with _compiled:
            this.compiled -= 1
    if opened:
        try:
            _over(returned)
        except Exception as trouble:
            probe.fail(trouble)


def _over(returned: bool) -> None:
    """The call from the loop has returned or raised."""
    known, this.known = this.known, None
    if known is None or not (known.trains or known.updates) or not probe.on:
        return
    ended = probe.clock()
    probe.trained = True
    told = turns(_arrived, this.began, ended, tracing.offset())
    replicas.worked(_arrived, this.began)
    _arrived.clear()
    if not known.trains:
        _updates_alone(ended)
    elif told and (told[0].trains or known.fetches):
        _trains(known, told, ended)
    elif not known.fetches and returned:
        _unseen(known, ended)
    elif known.fetches and this.asked:
        probe.steps.fetch_ends(ended, got=False)  # the data set is at its end


def _trains(known: Known, told: list[Turn], ended: int) -> None:
    last = len(told) - 1
    for number, turn in enumerate(told):
        end = ended if number == last else turn.moments[-1][1]
        updates = turn.updates or (
            number == last and known.updates and not any(one.updates for one in told)
        )
        began = this.began if number == 0 else told[number - 1].moments[-1][1]
        asked = this.asked and number == 0
        if asked and known.fetches and INPUT not in dict(turn.moments):
            probe.stride.mark(fetched, began, (0, 0))
            asked = False
        _turn(turn, began, end, updates, asked=asked)


def _turn(turn: Turn, began: int, end: int, updates: bool, *, asked: bool) -> None:
    mark = probe.stride.mark
    at = began
    first = dict(turn.moments[:2])
    if INPUT in first:
        if not asked:
            mark(_asks, began)
        # What the call takes before it asks for its batch is shown after it, as forward.
        at = began + first[INPUT] - first.get(ASKS, began)
        mark(fetched, at, (turn.samples, turn.tokens))
        mark(Steps.forward_begins, at)
    elif not asked:
        mark(Steps.forward_begins, began)
    for kind, moment in turn.moments:
        at = moment
        if kind == LOSS:
            mark(Steps.backward_begins, moment)
        elif kind == GRADIENTS:
            mark(backward_ended, moment, (turn.loss,))
        elif kind == REDUCES:
            mark(Steps.call_begins, moment)
        elif kind == REDUCED:
            mark(_reduced, moment)
    if not turn.trains:  # XLA compiled the rest
        mark(Steps.backward_begins, end)
        mark(backward_ended, end, (nan,))
        at = end
    if updates:
        mark(Steps.update_begins, at)
        mark(_updated, end)


def _unseen(known: Known, ended: int) -> None:
    """A call that trains and sent nothing."""
    turn = Turn((), known.updates, 0, 0, nan)
    _turn(turn, this.began, ended, known.updates, asked=this.asked)


def _updates_alone(ended: int) -> None:
    if not this.asked:
        probe.stride.mark(Steps.update_begins, this.began)
    probe.stride.mark(_updated, ended)


def _asks(steps: Steps, now: int) -> None:
    steps.fetch_begins(1, now)


def _reduced(steps: Steps, now: int) -> None:
    steps.call_ends(now, _SITE, recurs=False)


def _updated(steps: Steps, now: int) -> None:
    steps.update_ends(now, 1)
