"""How long each replica of this process worked: from the call until its gradients were there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import births
from . import tracing
from .timeline import GRADIENTS, Layout

_MOST = 64
_WARM_UP = 5
"""Steps that are left out: graphs are traced and memory is taken."""
_worked: dict[int, list[float]] = {}
"""By replica: steps and seconds."""


def worked(arrivals: Sequence[tuple[Layout, Sequence[float]]], began: int) -> None:
    """Adds one call's arrivals; `began`: when it was called (monotonic ns)."""
    since = (began - tracing.offset()) * 1e-9
    for layout, values in arrivals:
        last: dict[int, float] = {}
        for stamp, value in zip(layout, values, strict=False):
            if stamp.kind == GRADIENTS and 0 <= stamp.replica < _MOST:
                last[stamp.replica] = value
        for replica, moment in last.items():
            seen = _worked.setdefault(replica, [0.0, 0.0])
            seen[0] += 1
            if seen[0] > _WARM_UP:
                seen[1] += moment - since


def _told() -> dict[str, Any]:
    if len(_worked) < 2:
        return {}
    return {
        "replica_seconds": [
            seconds / (steps - _WARM_UP) if steps > _WARM_UP else None
            for _, (steps, seconds) in sorted(_worked.items())
        ]
    }


births.parts.append(_told)
