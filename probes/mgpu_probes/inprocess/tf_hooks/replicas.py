"""How long each replica of this process worked: from the call until its gradients were there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import births
from .latencies import Latencies
from .timeline import Plan

_MOST = 64
_WARM_UP = 5
"""Steps that are left out: graphs are traced and memory is taken."""
_worked: dict[int, Latencies] = {}
"""By replica."""


def worked(planned: Sequence[Plan], values: Sequence[float], since: float) -> None:
    """Adds what one call sent that began at `since` (seconds of the wall clock)."""
    for plan in planned:
        if len(plan.gradients) < 2:
            continue
        for replica, place in plan.gradients:
            seen = _worked.get(replica)
            if seen is None:
                if replica >= _MOST:
                    continue
                seen = _worked[replica] = Latencies(_WARM_UP)
            seen.add(values[place] - since)


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
