"""Wraps calls of `tf.function`s from the training loop and turns each into marks of phases.

While a function is traced, the hooks note whether it computes gradients or applies them. When a
call returns, the moments that its graphs stamped become marks. XLA cannot compile stamps: a call
that it compiles has no inner marks and counts as forward.
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
from .stamp_timeline import INPUT, Arrival, Layouts, Turn, merge_turns, plan_turns, time_turns
from .tensorflow_support import hide_caller_frame, is_eager, tensorflow

probe: ProbeContext

_MOST_ARRIVALS = 4096
"""Vectors of stamps that are kept of one call; later ones are dropped."""


class FunctionFacts:
    """What one `tf.function` was seen to do, over all of its traces."""

    __slots__ = ("fetches", "plain", "trains", "updates")

    def __init__(self) -> None:
        self.trains = self.updates = self.fetches = False
        """It computes gradients; applies them; fetches its batch from an iterator itself."""
        self.plain = False
        """It has returned from a call and does none of the three."""


class _Call:
    """The state of the outermost call from the training loop, if one is running."""

    facts: FunctionFacts | None = None
    """Of the called function; None: no call is running."""
    began = 0
    """Its start, monotonic ns."""
    first_mark_set = False
    """The first mark of its turn was set when it began."""
    computes = False
    """It was marked as a call that does not train."""
    xla_calls = 0
    """Running calls of functions that XLA compiles, in all threads."""
    trained = jit = False
    """Gradients were computed in this process so far; within a function that XLA compiles."""


current_call = _Call()
_LOOP_PHASES = (PENDING, layout.OTHER)
"""The phases of the loop's own code, between marks."""
_functions: WeakKeyDictionary[Any, FunctionFacts] = WeakKeyDictionary()
_unstamped_clones: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
"""Functions whose graphs hold stamps, each with a clone without stamps; None until one is
needed."""
_arrived: list[Arrival] = []
_xla_lock = Lock()


def patch(polymorphic_function: ModuleType) -> None:
    """Wraps the call of every `tf.function`."""
    function = polymorphic_function.Function
    original = function.__call__
    if wrapped(original):
        return

    @functools.wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            compiles, opened = _begin_call(self)
        except Exception as trouble:
            probe.fail(trouble)
            compiles = opened = False
        returning, graphs = returned_stamps.returning, graph_stamps.tracing.stamped
        outer_called, returning.called = returning.called, True
        called = self if _may_stamp() or is_eager() else _without_stamps(self)
        try:
            result = original(called, *args, **kwargs)
        except BaseException as error:
            returning.called = outer_called
            hide_caller_frame(error)
            _end_call(compiles, opened, returned=False)
            raise
        returning.called = outer_called
        if graphs != graph_stamps.tracing.stamped:
            _unstamped_clones.setdefault(self, None)
        _end_call(compiles, opened, returned=True)
        return result

    function.__call__ = hidden(call)
    function.get_concrete_function = _wrap_get_concrete_function(function.get_concrete_function)
    graph_stamps.tracing.allowed = _may_stamp
    graph_stamps.tracing.send = _collect_stamps


def _wrap_get_concrete_function(original: Any) -> Any:
    """Wraps `get_concrete_function`: a graph that the program exports or converts has no stamps."""

    @functools.wraps(original)
    def concrete(self: Any, *args: Any, **kwargs: Any) -> Any:
        returning = returned_stamps.returning
        outer_called, returning.called = returning.called, False
        try:
            return original(_without_stamps(self), *args, **kwargs)
        except BaseException as error:
            hide_caller_frame(error)
            raise
        finally:
            returning.called = outer_called

    return hidden(concrete)


def note_operations(*, trains: bool = False, updates: bool = False, fetches: bool = False) -> None:
    """Notes that the running call, or the graph traced in it, trains, updates weights or
    fetches."""
    if trains and not current_call.trained:
        current_call.trained = True
        probe.thread_clock = lambda: nan  # the work is done by threads of TensorFlow's own
    current_call.jit |= trains and current_call.xla_calls > 0
    facts = current_call.facts
    if facts is not None:
        facts.trains |= trains
        facts.updates |= updates
        facts.fetches |= fetches


def _may_stamp() -> bool:
    return current_call.facts is not None and not current_call.xla_calls


def _collect_stamps(sent: Layouts, values: list[float]) -> None:
    if current_call.facts is not None and len(_arrived) < _MOST_ARRIVALS:
        _arrived.append((sent, values))


def _begin_call(function: Any) -> tuple[bool, bool]:
    """Returns whether XLA compiles the function, and whether this is the loop's outermost call."""
    compiles = bool(getattr(function, "_jit_compile", False))
    if compiles:
        with _xla_lock:
            current_call.xla_calls += 1
    if (
        not probe.on
        or current_call.facts is not None
        or not is_eager()
        or _runs_functions_eagerly()
    ):
        return compiles, False
    if get_ident() != probe.owner and not probe.adopt():
        return compiles, False
    facts = _functions.get(function)
    if facts is None:
        facts = _functions[function] = FunctionFacts()
    _arrived.clear()
    current_call.facts, current_call.began = facts, probe.clock()
    current_call.first_mark_set = current_call.computes = False
    if facts.plain:
        if probe.ledger.phase in _LOOP_PHASES:
            current_call.computes = True
            probe.mark(Steps.computing_begins, current_call.began)
    elif facts.trains or facts.updates:
        current_call.first_mark_set = True
        first = Steps.forward_begins if facts.trains else Steps.update_begins
        probe.mark(turn_marks.fetch_begins if facts.fetches else first, current_call.began)
    return compiles, True


def _runs_functions_eagerly() -> bool:
    """Whether `tf.config.run_functions_eagerly(True)` is set: then no graph is traced."""
    return bool(tensorflow().config.functions_run_eagerly())


def _end_call(compiles: bool, opened: bool, *, returned: bool) -> None:
    if compiles:
        with _xla_lock:
            current_call.xla_calls -= 1
    if opened:
        try:
            _finish_call(returned)
        except Exception as trouble:
            probe.fail(trouble)


def _finish_call(returned: bool) -> None:
    """Sets the marks of the loop's call, which has returned or raised."""
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
        _mark_update_only(ended)
    elif call_turns and (call_turns[0].trains or facts.fetches):
        _mark_turns(facts, call_turns, ended)
    elif not facts.fetches and returned:
        _mark_without_stamps(facts, ended)
    elif facts.fetches and current_call.first_mark_set:
        probe.mark(fetch_found_end, ended)  # the data set was exhausted


def _turns_of_call(ended: int) -> list[Turn]:
    """The turns that the call's graphs stamped; empty without stamps. `ended`: monotonic ns."""
    if not _arrived:
        return []
    planned = plan_turns(_arrived)
    values = _arrived[0][1]
    if len(_arrived) > 1:
        values = [value for _, turn_values in _arrived for value in turn_values]
    _arrived.clear()
    offset = graph_stamps.wall_to_monotonic_ns()
    replica_latencies.add_call(planned, values, (current_call.began - offset) * 1e-9)
    return time_turns(planned, values, current_call.began, ended, offset)


def _mark_turns(facts: FunctionFacts, call_turns: list[Turn], ended: int) -> None:
    alone = not any(call_turn.updates for call_turn in call_turns)
    if alone and not facts.updates and len(call_turns) > 1:
        call_turns = merge_turns(call_turns)
    last = len(call_turns) - 1
    for number, turn in enumerate(call_turns):
        end = ended if number == last else turn.moments[-1][1]
        updates = turn.updates or (number == last and facts.updates and alone)
        began = current_call.began if number == 0 else call_turns[number - 1].moments[-1][1]
        first_mark_set = current_call.first_mark_set and number == 0
        if first_mark_set and facts.fetches and INPUT not in dict(turn.moments):
            probe.mark(fetched, began, (0, 0))
            first_mark_set = False
        turn_marks.mark_turn(turn, began, end, updates, first_mark_set=first_mark_set)


def _mark_without_stamps(facts: FunctionFacts, ended: int) -> None:
    """Marks a call that trains but has no stamps: all of it is forward."""
    turn = Turn((), facts.updates, 0, 0, nan)
    turn_marks.mark_turn(
        turn, current_call.began, ended, facts.updates, first_mark_set=current_call.first_mark_set
    )


def _mark_update_only(ended: int) -> None:
    if not current_call.first_mark_set:
        probe.mark(Steps.update_begins, current_call.began)
    probe.mark(updated, ended)


def _without_stamps(function: Any) -> Any:
    """A function whose graph has no stamps: `function` itself, or a clone that is traced again.
    XLA needs it, and so does code that exports or converts the graph."""
    if function not in _unstamped_clones or not hasattr(function, "_clone"):
        return function
    if _unstamped_clones[function] is None:
        _unstamped_clones[function] = function._clone(None)
    return _unstamped_clones[function]
