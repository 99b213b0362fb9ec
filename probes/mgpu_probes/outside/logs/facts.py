"""What is looked for in a log, and what was found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol


class Wanted(Protocol):
    """What is looked for. `pattern` is searched in lines that hold `needle`; it must match `least`
    times on a rank."""

    @property
    def id(self) -> str: ...
    @property
    def needle(self) -> str: ...
    @property
    def pattern(self) -> str: ...
    @property
    def least(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Hit:
    """The first line that matched a signature on a rank."""

    signature: str
    rank: int | None
    local_rank: int | None
    number: int
    text: str
    at: float | None
    values: Mapping[str, str]
    context: tuple[str, ...]
    count: int = 1
    after: int = 0
    """Lines later in this log, after its last match, by which training counts on."""
    later: float | None = None
    """Seconds from `at` to the last of them, by their time stamps."""


@dataclass(frozen=True, slots=True)
class Told:
    """A line near an ending, with the rank that it names in the form that torch prints."""

    number: int
    text: str
    after: int
    """Like `Hit.after`."""
    later: float | None
    """Like `Hit.later`, from the last stamp before."""
    at: float | None = None
    """Seconds since the epoch by its own stamp, or the last one shortly before."""


@dataclass(frozen=True, slots=True)
class Scanned:
    source: str
    lines: int
    hits: tuple[Hit, ...]
    told: tuple[Told, ...]
    tail: tuple[str, ...]
    ranks: frozenset[int]
    """That its first and last lines are labelled with."""
    local_ranks: frozenset[int]
    began: float | None
    """Seconds since the epoch by the first and the last stamped line."""
    ended: float | None
