"""CUDA graphs: when one is captured, and what its replay stands for.

While any thread captures, no event may be recorded or asked whether it has completed: under the
default capture mode that invalidates the capture, from whatever thread it comes
(pytorch#104487). So captures are counted here, and whoever touches events holds `lock`.

A replay calls no hook. A graph in whose capture a backward pass ran, or an optimizer stepped, sets
the same marks around its replay; the whole replay counts as that pass, as nothing may be added to
a user's graph that could divide it. Where a graph holds collectives, its rank waits unseen.
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
"""CU_STREAM_CAPTURE_MODE_THREAD_LOCAL: captures of other threads do not concern this one."""
lock = threading.Lock()
_running: WeakSet[Any] = WeakSet()
"""Graphs that are being captured."""


class _Contents:
    """What ran while a graph was captured."""

    has_backward = has_update = False
    issued = 0
    """Collectives of this rank before it was captured."""


_contents: WeakKeyDictionary[Any, _Contents] = WeakKeyDictionary()


def saw_backward() -> None:
    """A backward pass begins: if a graph is being captured, it goes into the graph."""
    for graph in _running:
        _contents[graph].has_backward = True


def saw_update() -> None:
    """An optimizer has stepped: if a graph is being captured, it went into the graph."""
    for graph in _running:
        _contents[graph].has_update = True


def is_capturing() -> bool:
    """Whether a thread captures a graph. Ask with `lock` held, and use the device under it."""
    if _running:
        return True
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def spare_captures() -> bool:
    """Whether the calling thread may ask for events from now on, whatever another thread captures.

    `_running` knows the graphs that Python captures; libraries may capture others. A thread in this
    mode invalidates none of them; torch's watchdog of NCCL asks in it, too (pytorch#148594). False
    without NVIDIA's driver: HIP was not tried."""
    try:
        exchange = ctypes.CDLL("libcuda.so.1").cuThreadExchangeStreamCaptureMode
    except (OSError, AttributeError):
        return False
    return bool(exchange(ctypes.byref(ctypes.c_int(_THREAD_LOCAL))) == 0)


def patch(graphs: ModuleType) -> None:
    """Wraps the beginning and end of captures, and replays."""
    graph = graphs.CUDAGraph
    wrap(graph, "capture_begin", _begins, _began)
    wrap(graph, "capture_end", _ends, _ended)
    wrap(graph, "replay", _replays, _replayed)


def _begins(args: tuple[Any, ...], _: dict[str, Any]) -> None:
    with lock:
        _running.add(args[0])
    _contents[args[0]] = contents = _Contents()
    contents.issued = process_groups.issued()


def _began(_: Any, __: Any) -> None:
    """Not called: a capture begins and goes on."""


def _ends(args: tuple[Any, ...], _: dict[str, Any]) -> Any:
    return args[0]


def _ended(graph: Any, _: Any) -> None:
    with lock:
        _running.discard(graph)
    if process_groups.issued() > _contents[graph].issued:
        probe.objects.miss_waits(UnseenWaits.CUDA_GRAPH)


def _replays(args: tuple[Any, ...], _: dict[str, Any]) -> _Contents | None:
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


def _replayed(contents: _Contents, _: Any) -> None:
    now = probe.clock()
    if contents.has_backward:
        probe.mark(backward_ended, now, (nan,))
        if contents.has_update:
            probe.mark(Steps.update_begins, now)
    if contents.has_update:
        probe.mark(updated, now)
