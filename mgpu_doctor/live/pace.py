"""How often something is done that may take a small share of the time."""

from __future__ import annotations

from collections.abc import Callable

SHARE = 0.003
"""Of a core: a seventh of what the whole screen may take with 256 ranks (2 %)."""
LONGEST_REST = 40.0
"""Seconds after which it is done whatever it costs."""


class Pace:
    """When something is due that may take `share` of the time. `cost`: seconds of CPU spent so far
    by this thread; `longest`: seconds after which it is due in any case."""

    def __init__(
        self,
        clock: Callable[[], float],
        cost: Callable[[], float],
        longest: float = LONGEST_REST,
        share: float = SHARE,
    ) -> None:
        self._clock = clock
        self._cost = cost
        self._longest = longest
        self._share = share
        self._due = 0.0
        self._began = 0.0

    def due(self) -> bool:
        return self._clock() >= self._due

    def begin(self) -> None:
        self._began = self._cost()

    def end(self, without: float = 0.0) -> float:
        """Seconds that it took, less those that are counted elsewhere."""
        took = self._cost() - self._began - without
        self._due = self._clock() + min(self._longest, took / self._share)
        return took
