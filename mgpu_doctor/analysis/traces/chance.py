"""How likely few steps look like this by chance, without a word on how times are distributed."""

from __future__ import annotations

import math

import numpy as np

from mgpu_doctor.analysis.steps.align import Floats

MOST_EXACT = 60
"""Values, up to which the signed-rank distribution is counted out."""


def signed_rank(series: Floats) -> float:
    """Chance that values which are as often above 0 as below, and as far, are above 0 as clearly
    (Wilcoxon 1945, one-sided)."""
    known = series[series != 0]
    count = len(known)
    order = np.argsort(np.argsort(np.abs(known), kind="stable"), kind="stable") + 1
    below = int(order[known < 0].sum())
    if count > MOST_EXACT:
        mean, variance = count * (count + 1) / 4, count * (count + 1) * (2 * count + 1) / 24
        return 0.5 * math.erfc((mean - below) / math.sqrt(2 * variance))
    ways = np.zeros(count * (count + 1) // 2 + 1)
    ways[0] = 1.0
    for rank in range(1, count + 1):
        ways[rank:] += ways[:-rank].copy()
    return float(ways[: below + 1].sum() / 2.0**count)


def last_so_often(times: int, of: int, ranks: int) -> float:
    """Chance that a given one of `ranks` comes last so many times or more."""
    share = 1 / ranks
    return sum(
        math.comb(of, one) * share**one * (1 - share) ** (of - one) for one in range(times, of + 1)
    )
