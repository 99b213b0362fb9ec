"""Whether data is waited for where an epoch begins."""

from __future__ import annotations

import numpy as np
from mgpu_probes.inprocess.layout import INPUT

from mgpu_doctor.analysis.steps.shares import after_warm_up
from mgpu_doctor.case.model import Rank

FEWEST = 3
"""Epochs that must begin, and steps that each must have, before a pattern is one."""


def at_epoch_starts(rank: Rank, batches: int | None) -> tuple[float, float] | None:
    """The share (0..1) of a rank's wait for data that falls on the first step of each epoch beyond
    what a step usually waits, and the median seconds of such a first wait.

    `batches`: of the loader, an epoch. None: not known, or too few epochs on record.
    """
    records = after_warm_up(rank.steps)
    if not batches or not len(records):
        return None
    each = max(1, int(np.median(records["micro_batches"])))
    distance = batches // each
    if distance < FEWEST or batches % each:
        return None
    waits = np.nan_to_num(records["phases"][:, INPUT].astype(float))
    place = records["step"].astype(np.int64) % distance
    if len(waits) < FEWEST * distance or waits.sum() <= 0:
        return None
    first = place == np.bincount(place, waits, minlength=distance).argmax()
    extra = np.maximum(waits[first] - np.median(waits), 0.0)
    return float(extra.sum() / waits.sum()), float(np.median(waits[first]))
