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
    """Of one device. Bytes throughout."""

    source: str
    reserved: int
    taken: int
    """In use; the rest of what is reserved is cached, or lost in pieces."""
    free: int
    """In pieces that a request beyond 1 MiB can be given: not of the pool for small ones, nor of a
    private one (CUDA graphs)."""
    pieces: int
    """Their number."""
    largest: int
    """Of them."""
    holders: tuple[Holder, ...]
    """Who holds most, by the user's code that asked for it."""
    refused: tuple[Refused, ...]
    """In the order in which they were."""
    moved: bool = False
    """Memory was taken or given back after the last of them: this is not how it was then."""
