"""Placeholders for ranks and jobs of which few facts are known: no black box, or only a dump."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from mgpu_doctor.case.model import Job, Outcome, Rank, State
from mgpu_doctor.case.process_metadata import UNKNOWN
from mgpu_doctor.recording.records import HISTORY_DTYPE, STEP_DTYPE


def blank_rank(**known: Any) -> Rank:
    """A rank with the given fields; all others are unknown."""
    return replace(_BLANK, **known)


def blank_job(id_: str, **known: Any) -> Job:
    """A torch job whose end is unknown."""
    return replace(_NO_JOB, id=id_, **known)


_NO_JOB = Job(
    id="",
    command=(),
    cwd=None,
    framework="torch",
    strategy=None,
    launcher=None,
    world_size=None,
    hosts=(),
    started=None,
    ended=None,
    outcome=Outcome.UNKNOWN,
    exit_code=None,
    signal=None,
    asked=None,
)
_BLANK = Rank(
    rank=None,
    local_rank=None,
    world_size=None,
    host="",
    pid=None,
    attempt=0,
    stage=None,
    device=None,
    state=State.RUNNING,
    exit_code=None,
    signal=None,
    ended=None,
    started=None,
    metadata=UNKNOWN,
    steps=np.empty(0, STEP_DTYPE),
    history=np.empty(0, HISTORY_DTYPE),
    history_window=None,
    events=(),
    now=None,
    error=None,
    probe_cost=None,
    lost_records=0,
    clock_offset=0.0,
)
