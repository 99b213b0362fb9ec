"""Placeholders for ranks and jobs of which few facts are known: no black box, only a dump, or no
job at all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from mgpu_doctor.case.device_samples import DeviceSample
from mgpu_doctor.case.model import Case, Job, Outcome, Rank, State, Subject
from mgpu_doctor.case.process_metadata import UNKNOWN
from mgpu_doctor.recording.records import HISTORY_DTYPE, STEP_DTYPE


def blank_rank(**known: Any) -> Rank:
    """A rank with the given fields; all others are unknown."""
    return replace(_BLANK, **known)


def blank_job(id_: str, **known: Any) -> Job:
    """A torch job whose end is unknown."""
    return replace(_NO_JOB, id=id_, **known)


MACHINE = "machine"
"""Kind of the subject if only the GPUs of a machine are examined."""


def case_of_machine(host: str, samples: Sequence[DeviceSample]) -> Case:
    """The case of a host on which no job runs. `samples`: at least one, oldest first."""
    return Case(
        subject=Subject(MACHINE, host),
        job=blank_job(host, framework=None, hosts=(host,)),
        observed=samples[-1].at,
        ranks=(),
        device_samples=tuple(samples),
    )


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
    events=(),
    now=None,
    error=None,
    probe_cost=None,
    lost_records=0,
    clock_offset=0.0,
)
