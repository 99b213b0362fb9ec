"""Small pieces that all families share: what is unknown is left out, foreign text is tamed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Protocol

from prometheus_client.core import Metric

from mgpu_doctor.report import text

MOST_LABEL = 200
"""Characters of a label's value; of a longer one the middle is left out."""


class Family(Protocol):
    """A gauge's or a counter's family."""

    def add_metric(self, labels: Sequence[str], value: float, /) -> None: ...


@lru_cache(4096)
def label(value: str | int | None) -> str:
    """`value` on one line; the empty label is how Prometheus writes that there is none."""
    return "" if value is None else text.cut(text.line(str(value)), MOST_LABEL)


def put(family: Family, labels: Sequence[str], value: float | None) -> None:
    """One series, unless its value is unknown."""
    if value is not None and math.isfinite(value):
        family.add_metric(labels, value)


def distinct(families: Iterable[Metric]) -> list[Metric]:
    """Those that have series, each series once: a scraper refuses a page that has one twice."""
    kept = []
    for family in families:
        seen = {(one.name, *one.labels.values()): one for one in reversed(family.samples)}
        family.samples = list(reversed(seen.values()))
        if family.samples:
            kept.append(family)
    return kept
