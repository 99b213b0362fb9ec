"""Stamps in the graphs that TensorFlow traces: moments that the graph itself takes as it runs.

Each is a `Timestamp` that waits for tensors by control edges. TensorFlow chains operations with
side effects in the order in which they were traced, which would make one replica start where the
other ends; ours are marked as independent, one by one (the tables in which TensorFlow lists kinds
of such operations are the user's, too). When the tracing of a graph ends, all of its stamps become
one vector, which the graph returns (`returned`) or, where it cannot, sends by a call into Python.
What a function returns to a graph that calls it becomes a part of that graph's vector.
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
from .tensorflow_support import eagerly, tensorflow, tensors

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


class _Sent:
    """What a graph will send."""

    def __init__(self) -> None:
        self.stamps: list[Stamp] = []
        self.values: list[Any] = []
        """Of its stamps."""
        self.layouts: list[Layout] = []
        """Of functions that it calls."""
        self.vectors: list[Any] = []
        """What these returned."""


class _Tracing:
    """What is being traced."""

    allowed: Callable[[], bool] = bool
    """Whether a watched call is under way, and XLA compiles none of it (`calls`)."""
    send: Callable[[Layouts, list[float]], None] = staticmethod(lambda *_: None)
    """Takes what a graph sends while it runs."""
    stamped = 0
    """Graphs so far that send, or call one that does."""
    off = ""
    """Why no graph is stamped; empty: they are."""
    reductions = 0
    """Reductions over replicas that this process has come to, as far as graphs say so live."""


tracing = _Tracing()
_pending: dict[int, _Sent] = {}
"""By the id of the graph that is being traced."""
_flags: dict[int, Stamp] = {}
"""Graphs that hold an update."""
_serial = count()


def patch(auto_control_deps: ModuleType) -> None:
    """Adds the call at the end of each graph's tracing, before its operations are put in order."""
    manager = auto_control_deps.AutomaticControlDependencies
    if not hasattr(manager, "run_independently"):
        tracing.off = "this TensorFlow cannot run operations independently of each other"
        return
    original = manager.__exit__

    def leaves(self: Any, *about: Any) -> Any:
        try:
            if about[0] is None:
                _flush(self)
            else:
                _pending.pop(id(getattr(self, "_graph", None)), None)
        except Exception as trouble:
            fail(trouble)
        return original(self, *about)

    manager.__exit__ = hidden(leaves)


def fail(trouble: Exception) -> None:
    """No graph is stamped from now on."""
    tracing.off = f"{type(trouble).__name__}: {trouble}"[:300]
    _pending.clear()
    _flags.clear()


def graph() -> Any:
    """The graph that is being traced, if it can be stamped."""
    if tracing.off or not probe.on or eagerly() or not tracing.allowed():
        return None
    traced = tensorflow().compat.v1.get_default_graph()
    return traced if getattr(traced, "experimental_acd_manager", None) is not None else None


def stamp(kind: int, ready: Any, replica: int) -> Any:
    """A moment at which all tensors of `after` are computed; None: they are none of this graph."""
    traced = graph()
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


def begin(kind: int) -> None:
    """A moment as soon as the graph runs."""
    traced = graph()
    if traced is None:
        return
    tf = tensorflow()
    with tf.device(_HOST):
        moment = tf.timestamp()
    traced.experimental_acd_manager.run_independently(moment.op)
    _add(traced, kind, -1, moment)


def number(kind: int, value: Any, replica: int) -> None:
    """A number that the graph knows when it runs."""
    traced = graph()
    if traced is None:
        return
    tf = tensorflow()
    with tf.device(_HOST):
        _add(traced, kind, replica, tf.cast(value, tf.float64))


def differentiates() -> bool:
    """Whether gradients were computed so far in the graph that is being traced."""
    sent = _pending.get(id(graph())) if _pending else None
    return sent is not None and any(stamp.kind == GRADIENTS for stamp in sent.stamps)


def updates(replica: int) -> None:
    """An optimizer's update belongs to the graph."""
    traced = graph()
    if traced is not None:
        _flags.setdefault(id(traced), Stamp(UPDATE, 0, replica, next(_serial)))


def live(phase: int, ready: Any, *, reduces: bool = False) -> None:
    """Shows `phase` in the box's now cell as soon as all tensors of `after` are computed: while one
    call blocks, nothing else could tell how far this rank has come. Ranks of several alone."""
    traced = graph() if probe.world_size > 1 else None
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
        _independent(traced, tf.numpy_function(shows, [], []))


def replica_of() -> int:
    """The replica that is being traced; -1: none, or all of them."""
    context = tensorflow().distribute.get_replica_context()
    # The public property gives a tensor; the private one what that is made of.
    index = getattr(context, "_replica_id_in_sync_group", -1) if context is not None else -1
    return index if type(index) is int else -1


def _add(traced: Any, kind: int, replica: int, value: Any) -> None:
    sent = _pending.setdefault(id(traced), _Sent())
    index = sum((earlier.kind, earlier.replica) == (kind, replica) for earlier in sent.stamps)
    sent.stamps.append(Stamp(kind, index, replica, next(_serial)))
    sent.values.append(value)


def _returns(layouts: Layouts, vector: Any) -> None:
    """A function returned: to the loop, or to a graph that is being traced."""
    if hasattr(vector, "numpy"):
        if probe.mine():
            probe.spent_ns += _READING_NS
            tracing.send(layouts, _numbers(vector))
    elif vector.graph is graph():
        sent = _pending.setdefault(id(vector.graph), _Sent())
        sent.layouts += layouts
        sent.vectors.append(vector)


def _numbers(vector: Any) -> list[float]:
    """What was sent, which is stored as whole numbers."""
    stored: Any = memoryview(vector).cast("B")
    values: list[float] = stored.cast("d").tolist()
    return values


def _flush(manager: Any) -> None:
    traced = getattr(manager, "_graph", None)
    sent = _pending.pop(id(traced), None)
    flag = _flags.pop(id(traced), None)
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
        if returned_stamps.can(traced):
            returned_stamps.will(traced, layouts, vector, _returns)
        else:
            _independent(traced, tf.numpy_function(_calls(layouts), [vector], []))


def _calls(layouts: Layouts) -> Callable[[Any], tuple[()]]:
    def sends(numbers: Any) -> tuple[()]:
        probe.spent_ns += _CALL_NS
        tracing.send(layouts, _numbers(numbers))
        return ()  # of None, TensorFlow would make an array

    return sends


def _independent(traced: Any, result: Any) -> None:
    """Marks the operation of a call into Python, which has no results."""
    operation = result if hasattr(result, "node_def") else traced.get_operations()[-1]
    traced.experimental_acd_manager.run_independently(operation)


def offset() -> int:
    """Nanoseconds from the wall clock, by which graphs stamp, to the monotonic clock."""
    return time.monotonic_ns() - time.time_ns()


def _off() -> dict[str, Any]:
    return {"probe": {"off": tracing.off}} if tracing.off else {}


def attach(context: ProbeContext) -> None:
    """Adds what this module knows to the process metadata."""
    context.add_metadata(_off)
