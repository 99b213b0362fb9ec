"""How long each replica of this process worked: from the call until its gradients were there."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from ...probe_context import ProbeContext
from .stamp_timeline import Plan

NEWEST = 256


class Latencies:
    """Seconds. `ahead`: the first so many are left out."""

    __slots__ = ("ahead", "count", "longest", "newest", "seconds")

    def __init__(self, ahead: int = 0) -> None:
        self.ahead = ahead
        self.count = 0
        self.seconds = self.longest = 0.0
        self.newest: deque[float] = deque(maxlen=NEWEST)

    def add(self, seconds: float) -> None:
        if self.ahead:
            self.ahead -= 1
            return
        self.count += 1
        self.seconds += seconds
        self.longest = max(self.longest, seconds)
        self.newest.append(seconds)

    def lately(self) -> dict[str, Any]:
        """Number and quartiles of the newest."""
        known = sorted(self.newest)
        if not known:
            return {"newest": 0, "quartiles": None}
        last = len(known) - 1
        quartiles = [known[round(last * part)] for part in (0.25, 0.5, 0.75)]
        return {"newest": len(known), "quartiles": quartiles}


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


def _describe() -> dict[str, Any]:
    if len(_worked) < 2:
        return {}
    known = sorted(_worked.items())
    return {
        "replica_seconds": [seen.seconds / seen.count if seen.count else None for _, seen in known],
        "replica_steps": [
            {"replica": replica, "count": seen.count, **seen.lately()} for replica, seen in known
        ],
    }


def attach(context: ProbeContext) -> None:
    """Adds what this module knows to the process metadata."""
    context.add_metadata(_describe)
