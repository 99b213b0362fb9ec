"""Calls of `tf.function`s from the training loop: what a call that trains means, mark by mark.

Whether a function trains is seen while it is traced: a tape is asked for gradients in it, an
optimizer applies them. What its graphs stamped is marked when the call returns. What XLA compiles
cannot be stamped: such a call is one piece, and counts as forward.
"""

from __future__ import annotations

import functools
from math import nan
from threading import Lock, get_ident
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from ... import layout
from ...phase_ledger import PENDING
from ...probe_context import ProbeContext
from ...step_engine import Steps
from ...step_marks import fetch_found_end, fetched, updated
from ...wrap import hidden, wrapped
from . import graph_stamps, replica_latencies, returned_stamps, turn_marks
from .stamp_timeline import INPUT, Arrival, Layouts, Turn, merge_turns, plans, turns
from .tensorflow_support import eagerly, tensorflow, unseen

probe: ProbeContext

_MOST_ARRIVALS = 4096
"""Of one call; more are left out."""


class FunctionFacts:
    """What is known of one `tf.function`."""

    __slots__ = ("fetches", "plain", "trains", "updates")

    def __init__(self) -> None:
        self.trains = self.updates = self.fetches = False
        """It computes gradients; applies them; asks an iterator for its batch itself."""
        self.plain = False
        """It has been called and does none of that."""


class _Call:
    """The call from the loop that is under way."""

    facts: FunctionFacts | None = None
    """None: there is no such call."""
    began = 0
    asked = False
    """Its first mark was set as it began."""
    computes = False
    """It began as one that does not train."""
    compiled = 0
    """Calls of functions that XLA compiles, in all threads."""
    trained = jit = False
    """Gradients were computed in this process so far; within what XLA compiles."""


current_call = _Call()
_AT_THE_TOP = (PENDING, layout.OTHER)
"""Phases of the loop itself."""
_functions: WeakKeyDictionary[Any, FunctionFacts] = WeakKeyDictionary()
_twins: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
"""Functions whose graphs hold stamps, and the like of each without; None until it is asked for."""
_arrived: list[Arrival] = []
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
        way, graphs = returned_stamps.returning, graph_stamps.tracing.stamped
        was_called, way.called = way.called, True
        called = self if _stamps() or eagerly() else _without_stamps(self)
        try:
            result = original(called, *args, **kwargs)
        except BaseException as error:
            way.called = was_called
            unseen(error)
            _ends(compiles, opened, returned=False)
            raise
        way.called = was_called
        if graphs != graph_stamps.tracing.stamped:
            _twins.setdefault(self, None)
        _ends(compiles, opened, returned=True)
        return result

    function.__call__ = hidden(call)
    function.get_concrete_function = _concrete(function.get_concrete_function)
    graph_stamps.tracing.allowed = _stamps
    graph_stamps.tracing.send = _arrives


def _concrete(original: Any) -> Any:
    """Who asks for a graph gets one that nobody changed."""

    @functools.wraps(original)
    def concrete(self: Any, *args: Any, **kwargs: Any) -> Any:
        way = returned_stamps.returning
        was_called, way.called = way.called, False
        try:
            return original(_without_stamps(self), *args, **kwargs)
        except BaseException as error:
            unseen(error)
            raise
        finally:
            way.called = was_called

    return hidden(concrete)


def noted(*, trains: bool = False, updates: bool = False, fetches: bool = False) -> None:
    """Something of a training runs, or was traced in the call that is under way."""
    if trains and not current_call.trained:
        current_call.trained = True
        probe.thread_clock = lambda: nan  # the work is done by threads of TensorFlow's own
    current_call.jit |= trains and current_call.compiled > 0
    facts = current_call.facts
    if facts is not None:
        facts.trains |= trains
        facts.updates |= updates
        facts.fetches |= fetches


def _stamps() -> bool:
    return current_call.facts is not None and not current_call.compiled


def _arrives(sent: Layouts, values: list[float]) -> None:
    if current_call.facts is not None and len(_arrived) < _MOST_ARRIVALS:
        _arrived.append((sent, values))


def _begins(function: Any) -> tuple[bool, bool]:
    """Whether XLA compiles it, and whether it is a call from the loop."""
    compiles = bool(getattr(function, "_jit_compile", False))
    if compiles:
        with _compiled:
            current_call.compiled += 1
    if not probe.on or current_call.facts is not None or not eagerly() or _never_traced():
        return compiles, False
    if get_ident() != probe.owner and not probe.adopt():
        return compiles, False
    facts = _functions.get(function)
    if facts is None:
        facts = _functions[function] = FunctionFacts()
    _arrived.clear()
    current_call.facts, current_call.began = facts, probe.clock()
    current_call.asked = current_call.computes = False
    if facts.plain:
        if probe.ledger.phase in _AT_THE_TOP:
            current_call.computes = True
            probe.mark(Steps.computing_begins, current_call.began)
    elif facts.trains or facts.updates:
        current_call.asked = True
        first = Steps.forward_begins if facts.trains else Steps.update_begins
        probe.mark(turn_marks.asks if facts.fetches else first, current_call.began)
    return compiles, True


def _never_traced() -> bool:
    """Whether the program has functions run as they are, line by line."""
    return bool(tensorflow().config.functions_run_eagerly())


def _ends(compiles: bool, opened: bool, *, returned: bool) -> None:
    if compiles:
        with _compiled:
            current_call.compiled -= 1
    if opened:
        try:
            _finish_call(returned)
        except Exception as trouble:
            probe.fail(trouble)


def _finish_call(returned: bool) -> None:
    """The call from the loop has returned or raised."""
    facts, current_call.facts = current_call.facts, None
    if facts is None or not probe.on:
        return
    trains = facts.trains or facts.updates
    facts.plain = not (trains or facts.fetches)
    if current_call.computes:
        probe.mark(Steps.computing_ends, probe.clock())
    if current_call.computes or not trains:
        return
    ended = probe.clock()
    probe.trained = True
    call_turns = _turns_of_call(ended)
    if not facts.trains:
        _updates_alone(ended)
    elif call_turns and (call_turns[0].trains or facts.fetches):
        _mark_turns(facts, call_turns, ended)
    elif not facts.fetches and returned:
        _mark_without_stamps(facts, ended)
    elif facts.fetches and current_call.asked:
        probe.mark(fetch_found_end, ended)  # the data set is at its end


def _turns_of_call(ended: int) -> list[Turn]:
    """What the graphs of the call sent."""
    if not _arrived:
        return []
    planned = plans(_arrived)
    values = _arrived[0][1]
    if len(_arrived) > 1:
        values = [value for _, turn_values in _arrived for value in turn_values]
    _arrived.clear()
    offset = graph_stamps.offset()
    replica_latencies.worked(planned, values, (current_call.began - offset) * 1e-9)
    return turns(planned, values, current_call.began, ended, offset)


def _mark_turns(facts: FunctionFacts, call_turns: list[Turn], ended: int) -> None:
    alone = not any(call_turn.updates for call_turn in call_turns)
    if alone and not facts.updates and len(call_turns) > 1:
        call_turns = merge_turns(call_turns)
    last = len(call_turns) - 1
    for number, turn in enumerate(call_turns):
        end = ended if number == last else turn.moments[-1][1]
        updates = turn.updates or (number == last and facts.updates and alone)
        began = current_call.began if number == 0 else call_turns[number - 1].moments[-1][1]
        asked_before = current_call.asked and number == 0
        if asked_before and facts.fetches and INPUT not in dict(turn.moments):
            probe.mark(fetched, began, (0, 0))
            asked_before = False
        turn_marks.turn(turn, began, end, updates, asked=asked_before)


def _mark_without_stamps(facts: FunctionFacts, ended: int) -> None:
    """A call that trains and sent nothing."""
    turn = Turn((), facts.updates, 0, 0, nan)
    turn_marks.turn(turn, current_call.began, ended, facts.updates, asked=current_call.asked)


def _updates_alone(ended: int) -> None:
    if not current_call.asked:
        probe.mark(Steps.update_begins, current_call.began)
    probe.mark(updated, ended)


def _without_stamps(function: Any) -> Any:
    """The function itself where it has no stamps, else one that is traced again, without them: for
    XLA, which compiles no such operation, and for who asks for a graph to convert or export it."""
    if function not in _twins or not hasattr(function, "_clone"):
        return function
    if _twins[function] is None:
        _twins[function] = function._clone(None)
    return _twins[function]
