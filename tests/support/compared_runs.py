"""Synthetic runs to compare: step times with realistic noise and known means."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from mgpu_doctor.analysis.comparing.compared_run import Memory, Run, Work
from mgpu_doctor.analysis.comparing.step_time_noise import mean_level, median_level
from mgpu_doctor.analysis.steps.step_alignment import Floats
from mgpu_doctor.case.model import Case
from tests.support.metadata import with_metadata
from tests.support.synthetic import Synthetic, synthetic_case

STEP = 0.04


def step_times(
    steps: int, seed: int, *, spread: float = 0.05, alike: float = 0.5, pauses: float = 0.01
) -> Floats:
    """Seconds of each step, correlated in time; some steps take 1.5 times as long."""
    random = np.random.default_rng(seed)
    noise = random.standard_normal(steps)
    for at in range(1, steps):
        noise[at] = alike * noise[at - 1] + np.sqrt(1 - alike**2) * noise[at]
    paused = 1 + 0.5 * (random.random(steps) < pauses)
    return np.asarray(STEP * (1 + spread * noise) * paused)


def run(
    name: str,
    series: Floats,
    *,
    ranks: int = 1,
    samples: float | None = 32.0,
    wait: float = 0.0,
    communication: float = 0.0,
    settings: Mapping[str, str] | None = None,
) -> Run:
    """A run with these step times. `wait`, `communication`: seconds of a mean step."""
    seconds = float(series.mean())
    work = seconds - wait - communication
    return Run(
        name=name,
        settings=settings or {},
        ranks=ranks,
        steps=len(series),
        mean=mean_level(series),
        median=median_level(series),
        work=Work(samples),
        phases={"forward": work, "wait": wait, "communication": communication},
        in_collectives=(wait + communication) / seconds,
        in_collectives_reason=None,
        memory=Memory("resident on the host", {0: 300 << 20}),
        memory_reason=None,
    )


def steady(seconds: float, steps: int = 100) -> Floats:
    return np.full(steps, seconds)


def fed_case(job: Synthetic, samples: int, **birth: Any) -> Case:
    """A synthetic job whose ranks train on `samples` samples per step."""
    case = synthetic_case(job)
    for rank in case.ranks:
        rank.steps["samples"] = samples
    ranks = tuple(with_metadata(rank, **{"threads": 1, **birth}) for rank in case.ranks)
    return replace(case, ranks=ranks)
