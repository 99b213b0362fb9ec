"""Adds time stamps to the graphs that TensorFlow traces: the graph takes them as it runs.

Each stamp is a `Timestamp` operation that waits for tensors by control edges. TensorFlow orders
operations with side effects as they were traced, which would run one replica after the other.
Therefore each stamp is marked as independent (one by one, because TensorFlow's tables of
independent kinds of operations also hold for the user's). When the tracing of a graph ends, its
stamps become one vector, which the graph returns (`returned_stamps`) or, if it cannot, sends by a
call into Python. A graph that calls a function adds the function's vector to its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import count
from types import ModuleType
from typing import Any

from ... import layout
from ...phase_ledger import PHASE_WORD, SINCE_WORD
from ...probe_context import ProbeContext
from ...wrap import hidden
from . import returned_stamps
from .stamp_timeline import GRADIENTS, UPDATE, Layout, Layouts, Stamp
from .tensorflow_support import is_eager, tensorflow, tensors

probe: ProbeContext

_SITE_WORD = layout.NOW_SITE // 8
_HOST = "CPU:0"
_CALL_NS = 450_000
"""A call from a graph into Python, on two cores with TensorFlow 2.21 (benchmarks/tf_probe_cost.py,
with and without it): between operations it finds the caches cold and waits for a thread."""
_READING_NS = 110_000
"""Stamps in a graph, and to find them beside the results of a call: what
benchmarks/tf_probe_cost.py told for one replica (135 µs), without what marks are counted for."""
_NEXT_CALL_NS = 40_000
"""A further one in the same step (measured in a row, in a graph of small products)."""


class _GraphStamps:
    """The stamps of one graph while it is traced."""

    def __init__(self) -> None:
        self.stamps: list[Stamp] = []
        self.values: list[Any] = []
        """The tensors of its stamps, in the same order."""
        self.layouts: list[Layout] = []
        """The layouts of the functions that it calls, then its own."""
        self.vectors: list[Any] = []
        """The vectors of the functions that it calls, then its own."""


class _Tracing:
    """State that all traced graphs share."""

    allowed: Callable[[], bool] = bool
    """Whether a watched call is running and XLA compiles none of it (set by `function_calls`)."""
    send: Callable[[Layouts, list[float]], None] = staticmethod(lambda *_: None)
    """Receives the layouts and values that a graph sends when it has run."""
    stamped = 0
    """Number of graphs so far with stamps of their own or of functions that they call."""
    off = ""
    """Why graphs are not stamped any more; empty if they are."""
    reductions = 0
    """Reductions over replicas that this process has reached, as counted by `show_phase`."""


tracing = _Tracing()
_pending: dict[int, _GraphStamps] = {}
"""By the id of the graph that is traced."""
_update_stamps: dict[int, Stamp] = {}
"""The UPDATE stamps of graphs that hold an update, by the graph's id."""
_serial = count()


def patch(auto_control_deps: ModuleType) -> None:
    """Adds a graph's stamps when its tracing ends, before TensorFlow orders its operations."""
    manager = auto_control_deps.AutomaticControlDependencies
    if not hasattr(manager, "run_independently"):
        tracing.off = "this TensorFlow cannot run operations independently of each other"
        return
    original = manager.__exit__

    def leaves(self: Any, *about: Any) -> Any:
        try:
            if about[0] is None:
                _send_stamps(self)
            else:
                _pending.pop(id(getattr(self, "_graph", None)), None)
        except Exception as trouble:
            disable(trouble)
        return original(self, *about)

    manager.__exit__ = hidden(leaves)


def disable(trouble: Exception) -> None:
    """Stops stamping graphs, for the reason `trouble`; training goes on unstamped."""
    tracing.off = f"{type(trouble).__name__}: {trouble}"[:300]
    _pending.clear()
    _update_stamps.clear()


def stampable_graph() -> Any:
    """The graph that is traced now, if stamps may be added to it; else None."""
    if tracing.off or not probe.on or is_eager() or not tracing.allowed():
        return None
    traced = tensorflow().compat.v1.get_default_graph()
    return traced if getattr(traced, "experimental_acd_manager", None) is not None else None


def stamp(kind: int, ready: Any, replica: int) -> Any:
    """Adds a stamp of the moment when all tensors in `ready` are computed. Returns its tensor; None
    if nothing was added, because no tensor in `ready` belongs to this graph."""
    traced = stampable_graph()
    graph_tensors = [
        tensor for tensor in tensors(ready) if getattr(tensor, "graph", None) is traced
    ]
    if traced is None or not graph_tensors:
        return None
    tf = tensorflow()
    with tf.device(_HOST), tf.control_dependencies(graph_tensors):
        moment = tf.timestamp()
    traced.experimental_acd_manager.run_independently(moment.op)
    _add(traced, kind, replica, moment)
    return moment


def stamp_start(kind: int) -> None:
    """Adds a stamp that is taken as soon as the graph runs."""
    traced = stampable_graph()
    if traced is None:
        return
    tf = tensorflow()
    with tf.device(_HOST):
        moment = tf.timestamp()
    traced.experimental_acd_manager.run_independently(moment.op)
    _add(traced, kind, -1, moment)


def send_number(kind: int, value: Any, replica: int) -> None:
    """Has the graph send `value`, a scalar tensor or number, with its stamps."""
    traced = stampable_graph()
    if traced is None:
        return
    tf = tensorflow()
    with tf.device(_HOST):
        _add(traced, kind, replica, tf.cast(value, tf.float64))


def has_gradients() -> bool:
    """Whether the graph that is traced now has computed gradients so far."""
    sent = _pending.get(id(stampable_graph())) if _pending else None
    return sent is not None and any(stamp.kind == GRADIENTS for stamp in sent.stamps)


def note_update(replica: int) -> None:
    """Notes that the graph that is traced now holds an optimizer's update."""
    traced = stampable_graph()
    if traced is not None:
        _update_stamps.setdefault(id(traced), Stamp(UPDATE, 0, replica, next(_serial)))


def show_phase(phase: int, ready: Any, *, reduces: bool = False) -> None:
    """Writes `phase` into the box's now cell when all tensors in `ready` are computed. While a call
    blocks, only this shows how far the rank has come. Does nothing in a job of one rank."""
    traced = stampable_graph() if probe.world_size > 1 else None
    graph_tensors = [
        tensor for tensor in tensors(ready) if getattr(tensor, "graph", None) is traced
    ]
    if traced is None or not graph_tensors:
        return
    site = probe.box.site("all_reduce of TensorFlow") if reduces and probe.box else 0

    def shows() -> tuple[()]:
        tracing.reductions += reduces
        probe.spent_ns += _NEXT_CALL_NS
        words = probe.ledger.words
        words[_SITE_WORD] = site
        words[layout.NOW_SEQUENCE // 8] = tracing.reductions
        words[PHASE_WORD] = phase | probe.ledger.step_bits
        words[SINCE_WORD] = probe.clock()
        return ()

    tf = tensorflow()
    with tf.device(_HOST), tf.control_dependencies(graph_tensors):
        _run_independently(traced, tf.numpy_function(shows, [], []))


def current_replica() -> int:
    """The index of the replica that is traced now; -1: none, or all of them."""
    context = tensorflow().distribute.get_replica_context()
    # The public property gives a tensor; the private one what that is made of.
    index = getattr(context, "_replica_id_in_sync_group", -1) if context is not None else -1
    return index if type(index) is int else -1


def _add(traced: Any, kind: int, replica: int, value: Any) -> None:
    sent = _pending.setdefault(id(traced), _GraphStamps())
    index = sum((earlier.kind, earlier.replica) == (kind, replica) for earlier in sent.stamps)
    sent.stamps.append(Stamp(kind, index, replica, next(_serial)))
    sent.values.append(value)


def _take_returned(layouts: Layouts, vector: Any) -> None:
    """Takes the stamps that a function returned: to the loop, or to the graph that calls it."""
    if hasattr(vector, "numpy"):
        if probe.mine():
            probe.spent_ns += _READING_NS
            tracing.send(layouts, _decode(vector))
    elif vector.graph is stampable_graph():
        sent = _pending.setdefault(id(vector.graph), _GraphStamps())
        sent.layouts += layouts
        sent.vectors.append(vector)


def _decode(vector: Any) -> list[float]:
    """The values of a vector, whose 64-bit integers hold the bits of doubles."""
    stored: Any = memoryview(vector).cast("B")
    values: list[float] = stored.cast("d").tolist()
    return values


def _send_stamps(manager: Any) -> None:
    traced = getattr(manager, "_graph", None)
    sent = _pending.pop(id(traced), None)
    flag = _update_stamps.pop(id(traced), None)
    if sent is None or tracing.off or tensorflow().compat.v1.get_default_graph() is not traced:
        return
    tracing.stamped += 1
    tf = tensorflow()
    with tf.device(_HOST):
        if sent.stamps:
            layout = (*sent.stamps, flag) if flag is not None else tuple(sent.stamps)
            sent.layouts.append(layout)
            sent.vectors.append(tf.bitcast(tf.stack(sent.values), tf.int64))
        vectors = sent.vectors
        vector = vectors[0] if len(vectors) == 1 else tf.concat(vectors, 0)
        layouts = tuple(sent.layouts)
        if returned_stamps.can_return(traced):
            returned_stamps.add_result(traced, layouts, vector, _take_returned)
        else:
            _run_independently(traced, tf.numpy_function(_make_sender(layouts), [vector], []))


def _make_sender(layouts: Layouts) -> Callable[[Any], tuple[()]]:
    def sends(numbers: Any) -> tuple[()]:
        probe.spent_ns += _CALL_NS
        tracing.send(layouts, _decode(numbers))
        return ()  # of None, TensorFlow would make an array

    return sends


def _run_independently(traced: Any, result: Any) -> None:
    """Lets the newest operation, a call into Python without results, run in any order."""
    operation = result if hasattr(result, "node_def") else traced.get_operations()[-1]
    traced.experimental_acd_manager.run_independently(operation)


def wall_to_monotonic_ns() -> int:
    """What to add to a moment of the wall clock, which graphs stamp, for the monotonic one; ns."""
    return time.monotonic_ns() - time.time_ns()


def _describe() -> dict[str, Any]:
    return {"probe": {"off": tracing.off}} if tracing.off else {}


def attach(context: ProbeContext) -> None:
    """Adds what this module knows to the process metadata."""
    context.add_metadata(_describe)
