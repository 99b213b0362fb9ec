"""Parameter servers, as the chief sees them: how long each worker takes for a closure.

Workers run no Python of the user's. A closure that a worker has carried out is a step of the job,
in which the chief waits.
"""

from __future__ import annotations

from math import nan
from threading import Lock
from types import ModuleType
from typing import Any

from .. import births, layout
from ..pieces import UPDATE, Facts, Step
from ..rank import probe
from .common import wrap

_MOST = 1024
_NO_FACTS: Facts = (0, 0, 0, 0)
_workers: dict[int, list[float]] = {}
"""By index: closures, seconds, the longest."""
_one_at_a_time = Lock()


class _Last:
    """When the newest step ended; 0: none has."""

    end = 0


this = _Last()


def patch(cluster_coordinator: ModuleType) -> None:
    """Wraps what each worker's thread does with a closure (private)."""
    wrap(cluster_coordinator.Worker, "_process_closure", _begins, _ends)


def _begins(args: tuple[Any, ...], _: dict[str, Any]) -> tuple[int, int] | None:
    index = getattr(args[0], "worker_index", None)
    if not probe.on or type(index) is not int or not 0 <= index < _MOST:
        return None
    return index, probe.clock()


def _ends(token: tuple[int, int], _: Any) -> None:
    index, began = token
    with _one_at_a_time:
        now = probe.clock()
        seconds = (now - began) * 1e-9
        seen = _workers.setdefault(index, [0, 0.0, 0.0])
        seen[0] += 1
        seen[1] += seconds
        seen[2] = max(seen[2], seconds)
        _step(this.end or began, now)
        this.end = now


def _step(start: int, end: int) -> None:
    phases = [0] * len(layout.PHASES)
    phases[layout.WAIT] = end - start
    probe._tell(
        Step(start, end, tuple(phases), UPDATE, False, 0, 0, nan, 1, 0, _NO_FACTS, _NO_FACTS)
    )


def _closures() -> dict[str, Any]:
    if not _workers:
        return {}
    told = [
        {"worker": index, "count": count, "seconds": seconds, "longest": longest}
        for index, (count, seconds, longest) in sorted(_workers.items())
    ]
    return {"closures": told}


births.parts.append(_closures)
