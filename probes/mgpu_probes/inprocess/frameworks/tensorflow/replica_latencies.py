"""Measures how long each replica of this process works: from the call until its gradients exist."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from ...probe_context import ProbeContext
from .stamp_timeline import Plan

NEWEST = 256


class Latencies:
    """Statistics of durations in seconds. `ahead`: how many of the first ones to leave out."""

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

    def describe_newest(self) -> dict[str, Any]:
        """The number of the newest durations (at most `NEWEST`), and their quartiles in seconds."""
        in_order = sorted(self.newest)
        if not in_order:
            return {"newest": 0, "quartiles": None}
        last = len(in_order) - 1
        quartiles = [in_order[round(last * part)] for part in (0.25, 0.5, 0.75)]
        return {"newest": len(in_order), "quartiles": quartiles}


_MOST = 64
_WARM_UP = 5
"""Steps that are left out, because graphs are traced and memory is allocated in them."""
_latencies: dict[int, Latencies] = {}
"""By replica."""


def add_call(planned: Sequence[Plan], values: Sequence[float], since: float) -> None:
    """Adds the latencies of a call that began at `since` (seconds of the wall clock)."""
    for plan in planned:
        if len(plan.gradients) < 2:
            continue
        for replica, place in plan.gradients:
            latencies = _latencies.get(replica)
            if latencies is None:
                if replica >= _MOST:
                    continue
                latencies = _latencies[replica] = Latencies(_WARM_UP)
            latencies.add(values[place] - since)


def _describe() -> dict[str, Any]:
    if len(_latencies) < 2:
        return {}
    by_replica = sorted(_latencies.items())
    return {
        "replica_seconds": [
            latencies.seconds / latencies.count if latencies.count else None
            for _, latencies in by_replica
        ],
        "replica_steps": [
            {"replica": replica, "count": latencies.count, **latencies.describe_newest()}
            for replica, latencies in by_replica
        ],
    }


def attach(context: ProbeContext) -> None:
    """Adds what this module knows to the process metadata."""
    context.add_metadata(_describe)
