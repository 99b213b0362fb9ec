"""How a device's memory was held when a snapshot of it was taken, and what was refused before."""

from __future__ import annotations

from dataclasses import dataclass

NO_STACK = "not recorded"
"""The place of a request whose stack nobody took."""


@dataclass(frozen=True, slots=True)
class Holder:
    """Code that holds memory. `place`: `forward model.py:41`."""

    place: str
    size: int
    blocks: int


@dataclass(frozen=True, slots=True)
class Refused:
    """A request that failed. Bytes."""

    wanted: int
    free: int | None
    """What the driver said was free then."""
    place: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Bytes throughout."""

    source: str
    reserved: int
    taken: int
    """In use; the rest of what is reserved is cached, or lost in pieces."""
    pieces: int
    """Free blocks."""
    largest: int
    """Of them."""
    holders: tuple[Holder, ...]
    """Who holds most, by the user's code that asked for it."""
    refused: tuple[Refused, ...]
    """In the order in which they were."""

    @property
    def free(self) -> int:
        return self.reserved - self.taken
