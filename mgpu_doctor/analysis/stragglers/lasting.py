"""Whether one rank's excess, of which the fleet says that it stands out, lasts to this day, and
since which step."""

from __future__ import annotations

import math

import numpy as np

from mgpu_doctor.analysis.statistics.significance import HEAD, MOST_STEPS, Persistent
from mgpu_doctor.analysis.steps.cells import Floats
from mgpu_doctor.analysis.stragglers.rises import (
    CLIP,
    SHORTEST,
    TO_NORMAL,
    Usual,
    autocorrelation,
    widened,
)

CHANGED = 3.7
"""Deviations by which the level before the onset and after it must differ for an excess to be
called one that came later: one in a hundred series of some hundred steps has such a one by chance
(its maximum over all onsets)."""
OVER = 3.0
"""Deviations by which the newest steps must fall short of the excess for it to be over."""
LATEST = 8
"""Newest steps that are looked at alone, and twice as many, and so on."""
OWN_NOISE = 1.65
"""A rank counts as noisier than the others only beyond the error of its own estimate."""


def lasting(
    series: Floats, usual: Usual, *, rise: float, level: float, floor: float
) -> Persistent | None:
    """The excess that lasts to the end of the series, or None.

    `rise`, `level`: the strength that the scan found for the newest steps and for all of them, as
    multiples of their limits; `floor`: least effect of interest, in the unit of the series.
    """
    onset, change = _onset(series, usual)
    later = onset >= HEAD and (rise >= 1 or change >= CHANGED)
    if not later or np.median(series[:onset]) >= np.median(series[onset:]) / 2:
        if level < 1:
            return None
        onset = 0
    newest = series[onset:]
    scale, variance = _own_noise(series, onset, usual)
    effect = _mean(newest, scale)
    error = scale * math.sqrt(variance / len(newest))
    sure = (rise if onset else level) * usual.scale / scale * math.sqrt(usual.variance / variance)
    positive = float(np.mean(newest > 0))
    if effect < floor or sure < 1 or positive < MOST_STEPS:
        return None
    middle = len(newest) // 2
    slack = error * math.sqrt(2)
    halves = (_mean(newest[:middle], scale), _mean(newest[middle:], scale))
    if min(halves) < effect / 2 - slack or _is_over(newest, effect, scale, variance):
        return None
    return Persistent(effect, min(sure, effect / floor), positive, onset)


def _onset(series: Floats, usual: Usual) -> tuple[int, float]:
    """Where the level most likely rose, and by how many standard errors."""
    count = len(series)
    clipped = np.clip((series - np.median(series)) / usual.scale, -CLIP, CLIP)
    before = np.arange(1, count - SHORTEST + 1)
    walk = np.cumsum(clipped - clipped.mean())[: len(before)]
    strength = -walk / np.sqrt(usual.variance * before * (count - before) / count)
    at = int(np.argmax(strength))
    return at + 1, float(strength[at])


def _own_noise(series: Floats, onset: int, usual: Usual) -> tuple[float, float]:
    """Scale and variance as in `Usual`, larger where this rank is noisier than the others or its
    steps are more alike."""
    parts = [part - np.median(part) for part in (series[:onset], series[onset:]) if len(part)]
    around = np.concatenate(parts)
    sure = 1 - OWN_NOISE / math.sqrt(len(around))
    own = TO_NORMAL * float(np.median(np.abs(around)))
    scale = max(usual.scale, own * sure)
    clipped = np.clip(around / scale, -CLIP, CLIP)[:, None]
    squares = np.einsum("ij,ij->j", clipped, clipped) + 1e-12
    alike = autocorrelation(clipped, squares) - 2 / math.sqrt(len(around))
    wider = max(1.0, widened(max(0.0, alike)) / widened(usual.alike))
    return scale, usual.variance * wider


def _mean(values: Floats, scale: float) -> float:
    """Of values clipped around their median."""
    centre = float(np.median(values))
    return centre + scale * float(np.mean(np.clip((values - centre) / scale, -CLIP, CLIP)))


def _is_over(newest: Floats, effect: float, scale: float, variance: float) -> bool:
    length = LATEST
    while length < len(newest):
        latest = _mean(newest[-length:], scale)
        if latest < effect / 2 and effect - latest > OVER * scale * math.sqrt(variance / length):
            return True
        length *= 2
    return False
