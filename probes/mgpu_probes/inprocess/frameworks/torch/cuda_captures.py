"""Tracks captures of CUDA graphs, and marks their replays.

While any thread captures a graph, no CUDA event may be recorded or queried: in the default capture
mode that invalidates the capture, from whatever thread (pytorch#104487). Therefore running captures
are tracked here, and code that touches events must hold `lock`.

A replay calls no hook. If a backward pass or an optimizer's step was captured, the same marks are
set around each replay. The whole replay counts as that phase, because nothing may be added to a
user's graph to divide it. If the graph holds collectives, the rank's waits cannot be seen.
"""

from __future__ import annotations

import ctypes
import threading
from math import nan
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import torch

from ...probe_context import ProbeContext
from ...step_engine import Steps
from ...step_marks import backward_ended, updated
from ...training_objects import UnseenWaits
from . import process_groups
from .torch_support import wrap

probe: ProbeContext

_THREAD_LOCAL = 1
"""CU_STREAM_CAPTURE_MODE_THREAD_LOCAL: this thread does not affect captures of other threads."""
lock = threading.Lock()
_running: WeakSet[Any] = WeakSet()
"""Graphs that are being captured now."""


class _Contents:
    """What ran while a graph was captured."""

    has_backward = has_update = False
    issued = 0
    """Collectives that the rank had issued before the capture."""


_contents: WeakKeyDictionary[Any, _Contents] = WeakKeyDictionary()


def note_backward() -> None:
    """Notes that a backward pass begins; it becomes part of all graphs that are being captured."""
    for graph in _running:
        _contents[graph].has_backward = True


def note_update() -> None:
    """Notes that an optimizer has stepped; this is part of all graphs that are being captured."""
    for graph in _running:
        _contents[graph].has_update = True


def is_capturing() -> bool:
    """Whether a thread captures a graph. Hold `lock` for the call and for using the device
    after."""
    if _running:
        return True
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def allow_queries_during_captures() -> bool:
    """Puts the calling thread into a mode in which it may query events during captures of other
    threads. Returns whether that worked; False without NVIDIA's driver (HIP was not tried).

    `_running` holds only graphs captured from Python; libraries may capture others. torch's NCCL
    watchdog uses the same mode (pytorch#148594)."""
    try:
        exchange = ctypes.CDLL("libcuda.so.1").cuThreadExchangeStreamCaptureMode
    except (OSError, AttributeError):
        return False
    return bool(exchange(ctypes.byref(ctypes.c_int(_THREAD_LOCAL))) == 0)


def patch(graphs: ModuleType) -> None:
    """Wraps the begin and end of captures, and replays."""
    graph = graphs.CUDAGraph
    wrap(graph, "capture_begin", _capture_begins, _ignore)
    wrap(graph, "capture_end", _capture_end_begins, _capture_end_ends)
    wrap(graph, "replay", _replay_begins, _replay_ends)


def _capture_begins(args: tuple[Any, ...], _: dict[str, Any]) -> None:
    with lock:
        _running.add(args[0])
    _contents[args[0]] = contents = _Contents()
    contents.issued = process_groups.count_issued()


def _ignore(_: Any, __: Any) -> None:
    """Never called, because the hook before it returns None."""


def _capture_end_begins(args: tuple[Any, ...], _: dict[str, Any]) -> Any:
    return args[0]


def _capture_end_ends(graph: Any, _: Any) -> None:
    with lock:
        _running.discard(graph)
    if process_groups.count_issued() > _contents[graph].issued:
        probe.objects.note_unseen_waits(UnseenWaits.CUDA_GRAPH)


def _replay_begins(args: tuple[Any, ...], _: dict[str, Any]) -> _Contents | None:
    contents = _contents.get(args[0])
    if contents is None or probe.in_backward or not probe.adopt():
        return None
    if contents.has_backward:
        probe.trained = True
        probe.mark(Steps.backward_begins, probe.clock())
    elif contents.has_update:
        probe.mark(Steps.update_begins, probe.clock())
    else:
        return None
    return contents


def _replay_ends(contents: _Contents, _: Any) -> None:
    now = probe.clock()
    if contents.has_backward:
        probe.mark(backward_ended, now, (nan,))
        if contents.has_update:
            probe.mark(Steps.update_begins, now)
    if contents.has_update:
        probe.mark(updated, now)
