"""The evidence as a table, without the columns in which nothing stands."""

from __future__ import annotations

from collections.abc import Sequence

from mgpu_doctor.findings import Evidence
from mgpu_doctor.report import text

HEADS = ("measure", "value", "against", "where", "source")


def evidence_table(evidence: Sequence[Evidence]) -> tuple[list[str], list[list[str]]]:
    """Heads and rows; anybody's words."""
    rows = [
        (
            one.measure,
            text.quantity(one.value, one.unit),
            "" if one.baseline is None else text.quantity(one.baseline, one.unit),
            one.where or "",
            one.source,
        )
        for one in evidence
    ]
    used = [place for place in range(len(HEADS)) if any(row[place] for row in rows)]
    return [HEADS[place] for place in used], [[row[place] for place in used] for row in rows]
