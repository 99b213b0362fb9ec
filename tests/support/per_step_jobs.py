"""Synthetic jobs of which every step can be set: stalls, loads, collections; lockstep as ever."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from mgpu_probes.inprocess.layout import PHASES

from mgpu_doctor.case.model import Case
from tests.support.synthetic import Synthetic, make_case, make_rank, own_work, records

Seconds = npt.NDArray[np.float64]


def job_of(
    work: Mapping[str, Seconds],
    *,
    fields: Mapping[str, npt.NDArray[Any]] | None = None,
    births: Mapping[int, Mapping[str, Any]] | None = None,
    communication: float = 0.002,
) -> Case:
    """A job whose ranks work so long: phase -> (T, R) seconds; `fields`: of records, (T, R)."""
    own = np.sum(list(work.values()), axis=0)
    count, ranks = own.shape
    made = records(Synthetic(ranks=ranks, steps=count))
    standing = own.max(axis=1, keepdims=True) - own + communication
    for rank, one in enumerate(made):
        one["phases"][:] = 0.0
        one["phases"][:, PHASES.index("communication")] = np.nan
        for phase, seconds in work.items():
            one["phases"][:, PHASES.index(phase)] = seconds[:, rank]
        one["phases"][:, PHASES.index("wait")] = standing[:, rank]
        one["wall_ns"] = ((own + standing)[:, rank] * 1e9).astype(np.int64)
        one["end_ns"] = 10**12 + np.cumsum(one["wall_ns"])
        for name, values in (fields or {}).items():
            one[name] = values[:, rank]
    births = births or {}
    return make_case(
        [make_rank(rank, steps, birth=births.get(rank, {})) for rank, steps in enumerate(made)]
    )


def healthy(job: Synthetic) -> dict[str, Seconds]:
    """Phase -> (T, R) seconds of such a job, to be changed."""
    return {phase: np.array(seconds) for phase, seconds in own_work(job).items()}
