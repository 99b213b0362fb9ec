"""The largest number that fits, found by trying few. Pure."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

CLOSE = 8
"""The search ends where the least that did not fit is larger by an eighth."""


@dataclass(frozen=True, slots=True)
class Tried:
    """`seconds` that a step took; `memory`: bytes."""

    seconds: float
    memory: int


@dataclass(frozen=True, slots=True)
class Found:
    size: int
    tried: Tried
    limit: Literal["memory", "data", "time"]
    """What kept it from being larger."""


def largest(
    fits: Callable[[int], Tried | None], most: int, patience: float, first: int = 1
) -> Found | None:
    """The largest size up to `most` of those tried that fits; None: not even one does.

    `fits`: None where it does not. Sizes are doubled from `first` on, until one does not fit or a
    step of it takes longer than `patience` seconds; then what lies between is tried.
    """
    size, none = min(first, most), most + 1
    best: tuple[int, Tried] | None = None
    while True:
        tried = fits(size)
        if tried is None:
            none = size
        else:
            best = size, tried
            if size == most:
                return Found(size, tried, "data")
            if tried.seconds > patience:
                return Found(size, tried, "time")
        low = best[0] if best else 0
        if none <= most and none - low <= max(1, low // CLOSE):
            return Found(*best, "memory") if best else None
        size = min(2 * size, most) if none > most else (low + none) // 2
