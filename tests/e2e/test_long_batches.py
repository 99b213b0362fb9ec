"""A real job with batches of varying length: its peaks predict the batch that would not fit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from mgpu_doctor.analysis.capacity.long_batches import find_long_batches
from mgpu_doctor.case.model import Case, Outcome
from mgpu_doctor.diagnosis import diagnose
from mgpu_doctor.rules.memory.leaks import GROWN
from mgpu_doctor.rules.settings import Settings
from tests.support.observed_jobs import record_job

pytestmark = [pytest.mark.slow, pytest.mark.untimed]
UNPOOLED = {"MALLOC_MMAP_THRESHOLD_": str(64 << 10)}
"""glibc then takes each tensor from the kernel and gives it back, as an allocator without cache:
else what it keeps follows no batch, and nothing is foretold."""


def limited(case: Case, room: float) -> Case:
    """The job as it ran, on a host that has so many bytes for it."""
    pid = case.ranks[0].pid or 0
    samples = tuple(
        structs.replace(sample, memory_used=sample.processes[pid][1], memory_total=int(room))
        for sample in case.host_samples
        if pid in sample.processes
    )
    running = replace(case.job, outcome=Outcome.RUNNING)
    return replace(case, job=running, host_samples=samples)


def test_the_next_long_batch_is_predicted_and_room_is_silence(tmp_path: Path) -> None:
    case = record_job(tmp_path, "long_batches", ranks=1, environment=UNPOOLED)
    (rank,) = find_long_batches(limited(case, 4 << 30), "host", GROWN.default)
    assert rank.unit == "tokens"
    assert rank.largest == rank.rank.steps["tokens"].max()
    short = limited(case, rank.line.peak(1.1 * rank.largest))
    far = Settings(values={"oom-risk": {"ahead": 50.0}})  # the largest of this job is an odd one
    (found,) = [one for one in diagnose(short, far).findings if one.code == "oom-risk"]
    smallest = next(one for one in found.evidence if one.measure.startswith("smallest batch"))
    assert smallest.value == pytest.approx(1.1 * rank.largest, rel=0.05)
    for healthy in (case, limited(case, 4 << 30)):
        assert "oom-risk" not in [one.code for one in diagnose(healthy, far).findings]
