"""How long each replica of this process worked: from the call until its gradients were there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import births
from . import tracing
from .latencies import Latencies
from .timeline import GRADIENTS, Layout

_MOST = 64
_WARM_UP = 5
"""Steps that are left out: graphs are traced and memory is taken."""
_worked: dict[int, Latencies] = {}
"""By replica."""


def worked(arrivals: Sequence[tuple[Layout, Sequence[float]]], began: int) -> None:
    """Adds one call's arrivals; `began`: when it was called (monotonic ns)."""
    since = (began - tracing.offset()) * 1e-9
    for layout, values in arrivals:
        last: dict[int, float] = {}
        for stamp, value in zip(layout, values, strict=False):
            if stamp.kind == GRADIENTS and 0 <= stamp.replica < _MOST:
                last[stamp.replica] = value
        for replica, moment in last.items():
            seen = _worked.get(replica)
            if seen is None:
                seen = _worked[replica] = Latencies(_WARM_UP)
            seen.add(moment - since)


def _told() -> dict[str, Any]:
    if len(_worked) < 2:
        return {}
    known = sorted(_worked.items())
    return {
        "replica_seconds": [seen.seconds / seen.count if seen.count else None for _, seen in known],
        "replica_steps": [
            {"replica": replica, "count": seen.count, **seen.lately()} for replica, seen in known
        ],
    }


births.parts.append(_told)
