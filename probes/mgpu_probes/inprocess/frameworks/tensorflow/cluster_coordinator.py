"""Measures, in the chief of a parameter-server job, how long each worker takes for a closure.

Workers run no Python of the user, so no probe runs there. Each finished closure is recorded as a
step of the job, in which the chief waits.
"""

from __future__ import annotations

from math import nan
from threading import RLock
from types import ModuleType
from typing import Any

from ... import layout
from ...probe_context import ProbeContext
from ...step_segments import UPDATE, Facts, Step
from .replica_latencies import Latencies
from .tensorflow_support import wrap

probe: ProbeContext

_MOST = 1024
_NO_FACTS: Facts = (0, 0, 0, 0)
_workers: dict[int, Latencies] = {}
"""Durations of closures, by the worker's index."""
_one_at_a_time = RLock()
"""Guards `_workers`. Reentrant: recording a step may renew the process metadata, which reads
them."""


class _Last:
    """The end of the newest step, monotonic ns; 0: there is none."""

    end = 0


last_closure = _Last()


def patch(cluster_coordinator: ModuleType) -> None:
    """Wraps the private method in which a worker's thread runs a closure."""
    wrap(cluster_coordinator.Worker, "_process_closure", _closure_begins, _closure_ends)


def _closure_begins(args: tuple[Any, ...], _: dict[str, Any]) -> tuple[int, int] | None:
    index = getattr(args[0], "worker_index", None)
    if not probe.on or type(index) is not int or not 0 <= index < _MOST:
        return None
    return index, probe.clock()


def _closure_ends(token: tuple[int, int], _: Any) -> None:
    index, began = token
    with _one_at_a_time:
        now = probe.clock()
        seconds = (now - began) * 1e-9
        latencies = _workers.get(index)
        if latencies is None:
            latencies = _workers[index] = Latencies()
        latencies.add(seconds)
        _record_step(last_closure.end or began, now)
        last_closure.end = now


def _record_step(start: int, end: int) -> None:
    phases = [0] * len(layout.PHASES)
    phases[layout.WAIT] = end - start
    probe.record_step(
        Step(start, end, tuple(phases), UPDATE, False, 0, 0, nan, 1, 0, _NO_FACTS, _NO_FACTS)
    )


def _describe() -> dict[str, Any]:
    if not _workers:
        return {}
    with _one_at_a_time:
        described = [
            {
                "worker": index,
                "count": latencies.count,
                "seconds": latencies.seconds,
                "longest": latencies.longest,
                **latencies.describe_newest(),
            }
            for index, latencies in sorted(_workers.items())
        ]
    return {"closures": described}


def attach(context: ProbeContext) -> None:
    """Adds what this module knows to the process metadata."""
    context.add_metadata(_describe)
