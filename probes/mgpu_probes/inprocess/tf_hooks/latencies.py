"""How long something takes, again and again: all of it, and the newest by itself."""

from __future__ import annotations

from collections import deque
from typing import Any

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
