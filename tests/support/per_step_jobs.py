"""Synthetic jobs given step by step, in seconds per phase and rank: for stalls and uneven data. The
ranks run in lockstep."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from mgpu_probes.inprocess.layout import PHASES

from mgpu_doctor.case.model import Case
from tests.support.synthetic import Synthetic, make_case, make_rank, own_work, records

Seconds = npt.NDArray[np.float64]


def case_of_seconds(
    work: Mapping[str, Seconds],
    *,
    fields: Mapping[str, npt.NDArray[Any]] | None = None,
    births: Mapping[int, Mapping[str, Any]] | None = None,
    communication: float = 0.002,
) -> Case:
    """A case from own work: phase -> (steps, ranks) seconds. `fields`: further fields of the
    records, (steps, ranks)."""
    own = np.sum(list(work.values()), axis=0)
    count, ranks = own.shape
    all_records = records(Synthetic(ranks=ranks, steps=count))
    standing = own.max(axis=1, keepdims=True) - own + communication
    for rank, record in enumerate(all_records):
        record["phases"][:] = 0.0
        record["phases"][:, PHASES.index("communication")] = np.nan
        for phase, seconds in work.items():
            record["phases"][:, PHASES.index(phase)] = seconds[:, rank]
        record["phases"][:, PHASES.index("wait")] = standing[:, rank]
        record["wall_ns"] = ((own + standing)[:, rank] * 1e9).astype(np.int64)
        record["end_ns"] = 10**12 + np.cumsum(record["wall_ns"])
        for name, values in (fields or {}).items():
            record[name] = values[:, rank]
    births = births or {}
    return make_case(
        [
            make_rank(rank, steps, birth=births.get(rank, {}))
            for rank, steps in enumerate(all_records)
        ]
    )


def healthy(job: Synthetic) -> dict[str, Seconds]:
    """Phase -> (steps, ranks) seconds of a healthy job, as copies that may be changed."""
    return {phase: np.array(seconds) for phase, seconds in own_work(job).items()}
