"""Sets of intervals on a line of integers, exact: `(n, 2)` arrays of begin and end, begin < end."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Spans: TypeAlias = npt.NDArray[np.int64]


def spans(starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> Spans:
    """Those of some length, in the order given."""
    found = np.stack((starts, starts + lengths), axis=1)
    return found[lengths > 0]


def union(some: Spans) -> Spans:
    """The same points as disjoint spans that do not touch, by begin."""
    if not len(some):
        return some.reshape(0, 2)
    ordered = some[np.argsort(some[:, 0], kind="stable")]
    reached = np.maximum.accumulate(ordered[:, 1])
    first = np.concatenate(([True], ordered[1:, 0] > reached[:-1]))
    last = np.concatenate((first[1:], [True]))
    return np.stack((ordered[first, 0], reached[last]), axis=1)


def length(some: Spans) -> int:
    """Of disjoint spans."""
    return int((some[:, 1] - some[:, 0]).sum())


def measure(some: Spans, at: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """How much of disjoint, ordered spans lies before each point."""
    if not len(some):
        return np.zeros(len(at), np.int64)
    before = np.concatenate(([0], np.cumsum(some[:, 1] - some[:, 0])))
    place = np.searchsorted(some[:, 0], at, side="right")
    inside = np.where(place > 0, np.maximum(0, some[place - 1, 1] - at), 0)
    return np.asarray(before[place] - inside, np.int64)


def within(some: Spans, windows: Spans) -> npt.NDArray[np.int64]:
    """How much of disjoint, ordered spans lies in each window."""
    return measure(some, windows[:, 1]) - measure(some, windows[:, 0])


def common(one: Spans, other: Spans) -> int:
    """Length of what two unions share."""
    return int(within(one, other).sum())


def gaps(some: Spans) -> Spans:
    """What lies between disjoint, ordered spans."""
    return np.stack((some[:-1, 1], some[1:, 0]), axis=1) if len(some) > 1 else some[:0]
