"""Which time a graph shows: how much of it, and whether it follows the present. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

LENGTHS = (60.0, 300.0, 900.0, 3600.0, 3 * 3600.0, 6 * 3600.0)
"""Seconds: the time bases."""
PAN = 0.25
"""Of the window: one step to the side."""


@dataclass(frozen=True, slots=True)
class Window:
    """`base`: place in `LENGTHS`. `end`: seconds since the epoch; None: it follows the present."""

    base: int = 1
    end: float | None = None

    @property
    def length(self) -> float:
        """Seconds."""
        return LENGTHS[self.base]

    def span(self, now: float) -> tuple[float, float]:
        """From when to when."""
        end = now if self.end is None else min(self.end, now)
        return end - self.length, end

    def zoom(self, by: int, now: float, first: float | None, share: float = 0.5) -> Window:
        """So many bases longer. What is at the `share` of the width stays there, unless the
        present is followed."""
        base = max(0, min(len(LENGTHS) - 1, self.base + by))
        if self.end is None:
            return replace(self, base=base)
        start, _ = self.span(now)
        still = start + share * self.length
        return Window(base, still + (1 - share) * LENGTHS[base]).clamped(now, first)

    def pan(self, by: float, now: float, first: float | None) -> Window:
        """So many steps later (or earlier)."""
        _, end = self.span(now)
        return replace(self, end=end + by * PAN * self.length).clamped(now, first)

    def follow(self) -> Window:
        """The present again."""
        return replace(self, end=None)

    def clamped(self, now: float, first: float | None) -> Window:
        """Not beyond the present, which is then followed, and not before `first`, the beginning of
        what is known."""
        if self.end is None or first is None:
            return self.follow()
        end = max(self.end, first + self.length)
        return self.follow() if end >= now else replace(self, end=end)
