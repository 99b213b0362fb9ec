"""What a scan finds in a log: hits of signatures, lines near failures, and the last lines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum


class Form(str, Enum):
    """How a message was recognised."""

    LINE = "line"
    """By its pattern, in one line."""
    JOINED = "joined"
    """By its pattern, in lines that were joined: the message is broken over them."""
    HEAD = "head"
    """By its head alone: the rest is cut off or has another wording. It has no values."""
    WORDS = "words"
    """By single words of an error that matches no known message. It has no values."""


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
    context: tuple[str, ...] = ()
    count: int = 1
    after: int = 0
    """Lines after its last match that report progress of the training."""
    later: float | None = None
    """Seconds from `at` to the last such line, by their time stamps."""
    form: Form = Form.LINE


@dataclass(frozen=True, slots=True)
class KeptLine:
    """A line near a failure, with its rank in torch's form (`[rank2]: `)."""

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
    kept_lines: tuple[KeptLine, ...]
    tail: tuple[str, ...]
    """The last lines that are not blank."""
    tail_numbers: tuple[int, ...]
    """The number of each of them."""
    ranks: frozenset[int]
    """Ranks that label its first and last lines."""
    local_ranks: frozenset[int]
    began: float | None
    """Seconds since the epoch by the first and the last stamped line."""
    ended: float | None
