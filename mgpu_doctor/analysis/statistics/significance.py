"""Significance tests: whether an excess is real, events are regular, a pattern is chance. Pure.

Step times have heavy tails (garbage collection, neighbours) and are autocorrelated, so a
plain t-test is far too confident. `Persistent` uses a trimmed mean with Winsorized standard error
(Yuen 1974), widened by the lag-one autocorrelation, against a limit that grows with the number of
comparisons, and requires that both halves, the median and most steps agree.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from mgpu_doctor.analysis.steps.step_alignment import Floats
from mgpu_doctor.analysis.steps.step_cells import Ints

LEAST_STEPS = 20
"""Fewer compared steps decide nothing."""
FALSE_ALARMS = 1e-3
"""Expected false alarms of one examination of a healthy job, all its comparisons together, were
the noise Gaussian; floor and agreement make it far less (benchmarks/detection.py)."""
TRIM = 0.1
MOST_STEPS = 0.7
"""Share of steps on which the excess must be positive."""
HEAD = 5
"""An onset later than this many steps is reported."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A trimmed mean with its standard error and degrees of freedom."""

    mean: float
    error: float
    freedom: float


@dataclass(frozen=True, slots=True)
class Persistent:
    """An excess that lasts to the end of the series."""

    effect: float
    """Trimmed mean, in the unit of the series."""
    certainty: float
    """Effect divided by the least that would have been significant; ≥1."""
    positive: float
    """Share of steps with an excess above 0."""
    onset: int
    """Index at which it begins; 0: from the start."""


def estimate(series: Floats, alike: float = 0.0) -> Estimate:
    """Trimmed mean of a series of at least 4 values, its error widened for autocorrelation: its
    own, or `alike` if that is more."""
    ordered = np.sort(series)
    count = len(ordered)
    cut = int(TRIM * count)
    low, high = ordered[cut], ordered[count - 1 - cut]
    clipped = np.clip(series, low, high)
    centred = clipped - clipped.mean()
    variance = float(centred @ centred) / (count - 1)
    alike = max(alike, autocorrelation(centred))
    spread = math.sqrt(variance * (1 + alike) / (1 - alike))
    return Estimate(
        mean=float(ordered[cut : count - cut].mean()),
        error=spread / ((1 - 2 * TRIM) * math.sqrt(count)),
        freedom=max(1.0, (count - 2 * cut) * (1 - alike) / (1 + alike) - 1),
    )


def autocorrelation(centred: Floats) -> float:
    """Lag-one autocorrelation, corrected for its bias in short series (Kendall 1954), 0 to 0.9."""
    squares = float(centred @ centred)
    if squares <= 0:
        return 0.0
    alike = float(centred[1:] @ centred[:-1]) / squares
    return min(0.9, max(0.0, alike + (1 + 3 * alike) / len(centred)))


def limit(comparisons: int, freedom: float) -> float:
    """How many standard errors an effect must measure: the Gaussian quantile for `comparisons` at
    `FALSE_ALARMS`, with the first Cornish-Fisher term for few degrees of freedom."""
    gauss = NormalDist().inv_cdf(1 - FALSE_ALARMS / max(1, comparisons))
    return gauss * (1 + (gauss * gauss + 1) / (4 * freedom))


def persistent(
    series: Floats, *, comparisons: int, floor: float, alike: float = 0.0
) -> Persistent | None:
    """The excess that the series shows from some step to its end, or None.

    `series`: a rank's excess in every step, NaN dropped by the caller; `floor`: least effect of
    interest, same unit; `alike`: least autocorrelation to reckon with, as other ranks show it. A
    stall now and then, an effect that ended, and one that only one half of the steps shows are not
    persistent.
    """
    if len(series) < LEAST_STEPS:
        return None
    comparisons *= len(series) // LEAST_STEPS  # onsets and looks before this one
    onset = change_point(series)
    if onset is not None and len(series) - onset >= LEAST_STEPS:
        before, after = float(np.median(series[:onset])), float(np.median(series[onset:]))
        around = max(alike, _alike_around(series, (before, after), onset))
        steady = _steady(series[onset:], comparisons=comparisons, floor=floor, alike=around)
        if steady is not None and before < steady.effect / 2:
            return Persistent(steady.effect, steady.certainty, steady.positive, onset)
        if after < before / 2:
            return None
    return _steady(series, comparisons=comparisons, floor=floor, alike=alike)


def _alike_around(series: Floats, levels: tuple[float, float], onset: int) -> float:
    """Autocorrelation around two levels: where the onset was chosen to fit, few steps after it
    look less alike than they are."""
    return clipped_autocorrelation(series - np.where(np.arange(len(series)) < onset, *levels))


def clipped_autocorrelation(series: Floats) -> float:
    """Autocorrelation of a series of one level, outliers clipped."""
    clipped = _clip_tails(series)
    return autocorrelation(clipped - clipped.mean())


def _clip_tails(series: Floats) -> Floats:
    """The series, clipped to its quantiles `TRIM` and `1 - TRIM`. They are those of `np.quantile`,
    which takes ten times as long for a short series."""
    ordered = np.sort(series)
    low, high = _quantile(ordered, TRIM), _quantile(ordered, 1 - TRIM)
    return np.asarray(series.clip(low, high))


def _quantile(ordered: Floats, share: float) -> float:
    place = share * (len(ordered) - 1)
    below = int(place)
    low, high = float(ordered[below]), float(ordered[min(below + 1, len(ordered) - 1)])
    weight = place - below
    if weight < 0.5:
        return low + (high - low) * weight
    return high - (high - low) * (1 - weight)


def _steady(series: Floats, *, comparisons: int, floor: float, alike: float) -> Persistent | None:
    whole = estimate(series, alike)
    least = max(floor, limit(comparisons, whole.freedom) * whole.error)
    positive = float(np.mean(series > 0))
    if whole.mean < least or positive < MOST_STEPS:
        return None
    middle = len(series) // 2
    halves = (np.median(series[:middle]), np.median(series[middle:]), np.median(series))
    if min(halves) < whole.mean / 2:
        return None
    return Persistent(whole.mean, whole.mean / max(least, 1e-12), positive, 0)


def change_point(series: Floats) -> int | None:
    """Where the level most likely changed (maximum of the centred cumulative sum of the clipped
    series), at least `HEAD` steps from the start; None where the change is not significant."""
    clipped = _clip_tails(series)
    walk = np.abs(np.cumsum(clipped - clipped.mean())[:-1])
    length = len(series)
    seen = np.arange(1, length)
    strength = walk / np.sqrt(seen * (length - seen) / length)
    at = int(np.argmax(strength)) + 1
    around = np.concatenate(
        (clipped[:at] - clipped[:at].mean(), clipped[at:] - clipped[at:].mean())
    )
    if at < HEAD or strength[at - 1] < limit(length, length) * around.std():
        return None
    return at


MOST_GAPS = 0.75
"""Share of the gaps that must be similar for a period to be reported."""
TOLERANCE = 0.05
"""Similar gaps differ by at most this share of the period (events every N seconds drift)."""


@dataclass(frozen=True, slots=True)
class Period:
    steps: float
    """Mean of the similar gaps."""
    chance: float
    """Chance of such similar gaps at random moments; 1 if inconclusive."""


def period(starts: Ints) -> Period | None:
    """The period of what begins at these step numbers (ascending); None where it has none.

    At random moments gaps are geometrically distributed, which gives how often one is within the
    tolerance by chance. One gap sets the median and proves nothing.
    """
    gaps = np.diff(starts)
    if len(gaps) < 2:
        return None
    middle = float(np.median(gaps))
    tolerance = math.floor(TOLERANCE * middle)
    alike = np.abs(gaps - middle) <= tolerance
    if alike.mean() < MOST_GAPS:
        return None
    never = 1 - 1 / middle
    single = never ** (middle - tolerance - 1) - never ** (middle + tolerance)
    chance = tail_bound(int(alike.sum()) - 1, len(gaps) - 1, single)
    return Period(float(gaps[alike].mean()), chance)


def tail_bound(hits: int, trials: int, share: float) -> float:
    """Upper bound of the chance of `hits` or more in `trials`, each with `share` (Chernoff)."""
    if trials <= 0 or share >= 1 or hits <= share * trials:
        return 1.0
    rate = hits / trials
    distance = rate * math.log(rate / share)
    if rate < 1:
        distance += (1 - rate) * math.log((1 - rate) / (1 - share))
    return math.exp(-trials * distance)


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
    """Chance that a given one of `ranks` ranks comes last at least that often."""
    share = 1 / ranks
    return sum(
        math.comb(of, number) * share**number * (1 - share) ** (of - number)
        for number in range(times, of + 1)
    )
