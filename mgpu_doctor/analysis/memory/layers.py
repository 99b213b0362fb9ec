"""Which weights belong to the repeated layers of a model, told by their sizes alone."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

import numpy as np

MOST = 2048
"""Of more weights than this only the first are looked at: comparing all takes their square."""


@dataclass(frozen=True, slots=True)
class Layers:
    """`count` layers of `size` bytes each; `rest`: the bytes of all other weights. No layers: no
    row of sizes repeats."""

    count: int
    size: int
    rest: int


@lru_cache(maxsize=8)
def layers(sizes: tuple[int, ...]) -> Layers:
    """The longest stretch in which a row of sizes stands several times in turn."""
    values = np.asarray(sizes[:MOST], dtype=np.float64)
    best_bytes, best = 0, Layers(0, 0, sum(sizes))
    sums = list(accumulate(sizes[:MOST], initial=0))
    for period in range(1, len(values) // 2 + 1):
        equal = values[:-period] == values[period:]
        edges = np.flatnonzero(np.diff(np.concatenate(([0], equal.astype(np.int8), [0]))))
        for start, stop in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
            count = (stop - start) // period + 1
            covered = sums[start + count * period] - sums[start] if count > 1 else 0
            if covered > best_bytes:
                best_bytes = covered
                best = Layers(count, covered // count, sum(sizes) - covered)
    return best
