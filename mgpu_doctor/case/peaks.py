"""How high a rank's memory had climbed by which batch, as its birth certificate tells."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from mgpu_doctor.case.files import Json, whole
from mgpu_doctor.case.model import Rank

MOST = 64


@dataclass(frozen=True, slots=True)
class Rung:
    """Of all steps up to this one. Samples and tokens of the largest, 0: unknown; bytes."""

    step: int
    samples: int
    tokens: int
    peak: int


def rungs(rank: Rank, where: str) -> tuple[Rung, ...]:
    """`where`: `device` or `host`. Empty where nothing is told, or what is told is no ladder."""
    told = rank.birth.get("memory_peaks")
    rows = told.get(where) if isinstance(told, Mapping) else None
    if not isinstance(rows, list):
        return ()
    found = [rung for row in rows[:MOST] if (rung := _rung(row)) is not None]
    climbs = all(
        one.step <= next_.step
        and one.samples <= next_.samples
        and one.tokens <= next_.tokens
        and one.peak <= next_.peak
        for one, next_ in pairwise(found)
    )
    return tuple(found) if climbs else ()


def _rung(row: Json) -> Rung | None:
    values = [whole(one) for one in row] if isinstance(row, list) and len(row) == 4 else []
    known = [one for one in values if one is not None]
    return Rung(*known) if len(known) == 4 else None
