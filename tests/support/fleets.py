"""Simulates jobs of many ranks in lockstep, as the records that the ranks would have written.

Noise is log-normal; 1 % of a rank's steps take up to 1.5 times as long; ranks differ permanently.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from mgpu_probes.inprocess.layout import BACKWARD, COMMUNICATION, WAIT

from mgpu_doctor.case.model import Case
from mgpu_doctor.recording.box import STEP_DTYPE
from tests.support.synthetic import make_case, make_rank

STEP = 0.1
MOVING = 0.005
BLOCK = 100


@dataclass(frozen=True, slots=True)
class Fleet:
    ranks: int
    noise: float
    """Coefficient of variation of a rank's own work."""
    correlation: float = 0.0
    """Correlation of that noise between consecutive steps (AR(1))."""
    uneven: float = 0.005
    """Constant relative differences between healthy ranks, standard deviation."""
    drift: float = 0.0
    """Amplitude of a slow change, and of one from step to step, that all ranks share."""


@dataclass(frozen=True, slots=True)
class Slow:
    """One rank whose own work takes `by` (a share) longer from step `start` until `stop`."""

    by: float
    start: int = 0
    stop: int | None = None


def simulate(
    fleet: Fleet, steps: int, seed: int, slow: Slow | None = None
) -> tuple[npt.NDArray[np.void], int]:
    """The records, (ranks, steps), and the rank that `slow` applies to."""
    random = np.random.default_rng(seed)
    level = (1 + fleet.uneven * random.standard_normal(fleet.ranks)).astype(np.float32)
    culprit = int(random.integers(fleet.ranks))
    records = np.zeros((fleet.ranks, steps), dtype=STEP_DTYPE)
    state = random.standard_normal(fleet.ranks, dtype=np.float32)
    for start in range(0, steps, BLOCK):
        at = np.arange(start, min(start + BLOCK, steps))
        noise = random.standard_normal((len(at), fleet.ranks), dtype=np.float32)
        if fleet.correlation:
            noise *= np.sqrt(1 - fleet.correlation**2)
            for row in range(len(at)):
                noise[row] += fleet.correlation * state
                state = noise[row]
        own = STEP * level * np.exp(fleet.noise * noise)
        spiking = random.random(own.shape, dtype=np.float32) < 0.01
        own[spiking] *= 1 + 0.5 * random.random(int(spiking.sum()), dtype=np.float32)
        shared = np.sin(at / 20) + random.standard_normal(len(at))
        own *= np.exp(fleet.drift * shared)[:, None].astype(np.float32)
        if slow is not None:
            hit = (at >= slow.start) & (at < (slow.stop or steps))
            own[hit, culprit] *= 1 + slow.by
        _write(records[:, at[0] : at[-1] + 1], own, at)
    records["end_ns"] = np.cumsum(records["wall_ns"][0])
    return records, culprit


def _write(records: npt.NDArray[np.void], own: npt.NDArray[np.float32], at: Any) -> None:
    standing = own.max(axis=1, keepdims=True) - own + MOVING
    phases = records["phases"]
    phases[:, :, BACKWARD] = own.T
    phases[:, :, WAIT] = standing.T
    phases[:, :, COMMUNICATION] = np.nan
    records["seq"] = at + 1
    records["step"] = at
    records["wall_ns"] = ((own + standing).T * 1e9).astype(np.int64)
    records["group_seq"] = 10 + 3 * at
    records["cpu_s"] = np.nan


def case_of(records: npt.NDArray[np.void]) -> Case:
    """A running job of ranks with these (R, T) records."""
    return make_case([make_rank(number, steps) for number, steps in enumerate(records)])
