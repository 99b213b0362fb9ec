"""One thing that happened."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from mgpu_doctor.report import text
from mgpu_doctor.report.verdict import Tone

LONGEST = 400
"""Characters of a sentence."""
TOGETHER = 5.0
"""Seconds between two ranks' events of the same kind that are told as one."""


class Kind(str, Enum):
    """What an event is about."""

    RANKS = "ranks"
    SAVING = "saving"
    PAUSES = "pauses"
    COMPILING = "compiling"
    ERRORS = "errors"
    FINDINGS = "findings"
    GPUS = "GPUs"


@dataclass(frozen=True, slots=True)
class Event:
    kind: Kind
    at: float | None
    """Seconds since the epoch; None: nobody knows when."""
    who: str
    sentence: str
    tone: Tone = Tone.INFO


T = TypeVar("T")


def said(words: str) -> str:
    """Somebody's words as part of a sentence."""
    return text.cut(text.line(words), LONGEST)


def together(moments: Iterable[tuple[float, T]], gap: float = TOGETHER) -> Iterator[list[T]]:
    """What belongs to moments that follow each other within `gap` seconds."""
    group: list[T] = []
    last = 0.0
    for at, what in sorted(moments, key=lambda moment: moment[0]):
        if group and at - last > gap:
            yield group
            group = []
        group.append(what)
        last = at
    if group:
        yield group
