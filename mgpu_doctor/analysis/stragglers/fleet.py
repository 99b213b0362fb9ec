"""The slow ones among many ranks: each held against what all of them show."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from mgpu_doctor.analysis.statistics.medians import BLOCK, column_medians
from mgpu_doctor.analysis.statistics.significance import LEAST_STEPS, Persistent
from mgpu_doctor.analysis.steps.align import Joined
from mgpu_doctor.analysis.steps.attribution import (
    OWN_PHASES,
    REFERENCE,
    Attribution,
    phase_excess,
    reference,
)
from mgpu_doctor.analysis.steps.cells import Floats, Ints
from mgpu_doctor.analysis.stragglers.lasting import lasting
from mgpu_doctor.analysis.stragglers.rises import LEAST_RANKS, learn, level_limit, rise_limit

RESOLUTION = 1e-4
"""Share of the median rank's work below which no deviation means anything."""
LIKELY = 0.5
"""Share of the floor that a rank's sum must show for its phases to be looked at one by one."""
MOST_LIKELY = 256
"""Ranks whose phases are looked at: those with the largest sums."""

UNKNOWN = 0.5
"""Share of steps; a rank whose phase was measured less often is not compared."""

Excess = Callable[[Ints], Floats]
"""(T, k) seconds of k columns."""


def among_many(
    joined: Joined, attribution: Attribution, floor: float
) -> dict[int, list[Persistent]]:
    """Columns whose own work, or a phase of it, lasts longer than the others' by `floor` seconds
    at least, and in what ways."""
    fleet = _Fleet.of(joined, attribution, floor)
    everybody = np.arange(len(joined.ranks))
    found = fleet.lasting(lambda columns: attribution.excess[:, columns], everybody)
    late = column_medians(attribution.excess[-2 * LEAST_STEPS :])
    likely = np.argsort(-late)[:MOST_LIKELY]
    likely = np.sort(likely[late[likely] >= LIKELY * floor])
    for phase in OWN_PHASES if len(likely) else ():
        more = fleet.lasting(_excess_in(joined, phase), likely)
        for column, ways in more.items():
            found.setdefault(column, []).extend(ways)
    return found


def _excess_in(joined: Joined, phase: int) -> Excess:
    """Computed at once where it is not much."""
    if len(joined.ranks) > REFERENCE:
        return partial(phase_excess, joined, phase)
    whole = phase_excess(joined, phase)
    return lambda columns: whole[:, columns]


@dataclass(frozen=True, slots=True)
class _Fleet:
    rows: Ints
    """Steps in which every rank's work is known."""
    pace: Floats
    """Usual over actual work of the median rank: a long step makes all differences longer."""
    usual: float
    """Seconds of the median rank's work."""
    ranks: int
    steps: int
    """Of the job so far, which is as often as it may have been looked at."""
    floor: float

    @classmethod
    def of(cls, joined: Joined, attribution: Attribution, floor: float) -> _Fleet:
        rows = np.flatnonzero(~np.isnan(attribution.typical))
        work = attribution.typical[rows]
        usual = float(np.median(work))
        return cls(
            rows=rows,
            pace=usual / np.maximum(work, max(usual, 1e-9) * 1e-3),
            usual=usual,
            ranks=len(joined.ranks),
            steps=int(joined.steps[-1]) + 1,
            floor=floor,
        )

    def lasting(self, excess: Excess, columns: Ints) -> dict[int, list[Persistent]]:
        """Of these columns, those whose excess lasts."""
        known, _ = self._series(excess(reference(self.ranks)))
        if known.shape[1] < LEAST_RANKS:
            return {}
        usual = learn(known, resolution=RESOLUTION * self.usual)
        rise_needed, level_needed = rise_limit(self.ranks, self.steps), level_limit(self.ranks)
        size = max(1, BLOCK // len(self.rows))
        found: dict[int, list[Persistent]] = {}
        for start in range(0, len(columns), size):
            some = columns[start : start + size]
            series, places = self._series(excess(some))
            newest, whole = usual.of(series)
            rise, level = newest / rise_needed, whole / level_needed
            for at in np.flatnonzero((rise >= 1) | (level >= 1)).tolist():
                one = lasting(
                    series[:, at],
                    usual,
                    rise=float(rise[at]),
                    level=float(level[at]),
                    floor=self.floor,
                )
                if one is not None:
                    onset = int(self.rows[one.onset]) if one.onset else 0
                    found[int(some[places[at]])] = [replace(one, onset=onset)]
        return found

    def _series(self, seconds: Floats) -> tuple[Floats, Ints]:
        """(T, k) at the usual pace, of those columns that are known in most steps, and which they
        are; what is not known counts as usual for its rank."""
        series = np.array(seconds[self.rows].T, order="C")
        series *= self.pace.astype(series.dtype)
        unknown = np.isnan(series)
        kept = np.arange(len(series))
        if unknown.any():
            kept = np.flatnonzero(unknown.mean(axis=1) < UNKNOWN)
            series, unknown = series[kept], unknown[kept]
            usual = column_medians(series.T)
            series = np.where(unknown, usual[:, None], series)
        return np.asarray(series.T), kept
