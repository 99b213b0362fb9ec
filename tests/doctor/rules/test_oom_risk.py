"""oom-risk: memory that will run out is reported while the job runs, once, with the step;
afterwards it is a leak."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from msgspec import structs

from mgpu_doctor.analysis.capacity.memory_growth import find_growing_devices
from mgpu_doctor.case.host_samples import HostSample, Task
from mgpu_doctor.case.model import Case, Outcome
from mgpu_doctor.diagnosis import diagnose
from mgpu_doctor.findings import Finding, Severity
from tests.support.gpus import GIB, gpus, on_gpus
from tests.support.metadata import with_metadata
from tests.support.rule_limits import equal_counts_as
from tests.support.synthetic import Synthetic, synthetic_case

MIB = 1 << 20
STEPS = 150
JOB = Synthetic(ranks=2, steps=STEPS)


def memory_findings(case: Case) -> list[Finding]:
    codes = ("oom-risk", "leak-device", "leak-host")
    return [finding for finding in diagnose(case).findings if finding.code in codes]


def growing_on_devices(*slopes: float, used: int = 60) -> Case:
    """Ranks on GPUs of 80 GiB of which `used` are taken; MiB a step by rank."""
    case = on_gpus(JOB, gpus(2, memory_used=used * GIB))
    for rank, slope in zip(case.ranks, slopes, strict=True):
        rank.steps["device_bytes"] = 40 * GIB + slope * MIB * rank.steps["step"].astype(float)
    return case


def growing_on_the_host(*slopes: float, free: int) -> Case:
    case = synthetic_case(JOB)
    for rank, slope in zip(case.ranks, slopes, strict=True):
        rank.steps["resident_bytes"] = GIB + slope * MIB * rank.steps["step"].astype(float)
    sample = HostSample(case.observed, 50.0, 2, None, 16 * GIB - free, 16 * GIB)
    return replace(case, host_samples=(sample,))


def test_the_step_at_which_a_device_is_full() -> None:
    (finding,) = memory_findings(growing_on_devices(0, 2))
    assert (finding.code, [culprit.rank for culprit in finding.culprits]) == ("oom-risk", [1])
    assert "about 10,240 steps" in finding.title
    assert finding.severity is Severity.CRITICAL, "five minutes at 29 ms a step"


def test_what_torch_keeps_unused_counts_as_left() -> None:
    case = growing_on_devices(0, 2)
    kept = {"device_memory": {"allocated": 40 * GIB, "reserved": 50 * GIB}}
    ranks = tuple(with_metadata(rank, **kept) for rank in case.ranks)
    (finding,) = memory_findings(replace(case, ranks=ranks))
    assert "about 15,360 steps" in finding.title


def test_ranks_that_fill_a_host_together_are_added_up() -> None:
    (finding,) = memory_findings(growing_on_the_host(1, 1, free=GIB))
    assert finding.code == "oom-risk"
    assert finding.culprits == ()
    assert "every rank" in finding.title
    assert "about 512 steps" in finding.title


@pytest.mark.parametrize(
    ("room", "later", "steps"), [(256, 0, 128), (256, 56, 100), (4096, 0, 512), (None, 0, 512)]
)
def test_a_limit_of_its_own_that_is_nearer_than_the_end_of_the_host(
    room: int | None, later: int, steps: int
) -> None:
    """`later`: MiB by which it has grown since its limit was looked at."""
    case = growing_on_the_host(0, 2, free=GIB)
    (sample,), rank = case.host_samples, case.ranks[1]
    resident = int(rank.steps["resident_bytes"][-1]) - later * MIB
    assert rank.pid is not None
    task = Task(room=None if room is None else room * MIB)
    sample = structs.replace(sample, tasks={rank.pid: task}, processes={rank.pid: (1.0, resident)})
    (finding,) = memory_findings(replace(case, host_samples=(sample,)))
    assert f"about {steps:,} steps" in finding.title
    assert ("ulimit -v" in finding.cause) is (steps < 512)


def test_what_is_full_in_weeks_or_when_the_job_is_over_is_a_leak() -> None:
    case = growing_on_devices(0, 2)
    over = replace(case, job=replace(case.job, outcome=Outcome.COMPLETED))
    assert [finding.code for finding in memory_findings(over)] == ["leak-device"]
    weeks = replace(over, device_samples=())
    assert [finding.code for finding in memory_findings(weeks)] == ["leak-device"], (
        "nobody knows when"
    )


def test_a_device_that_is_full_and_does_not_grow_is_no_risk() -> None:
    assert memory_findings(growing_on_devices(0, 0, used=79)) == []
    lengths = np.random.default_rng(0).lognormal(6.5, 0.8, STEPS)
    case = growing_on_devices(0, 0)
    case.ranks[0].steps["device_bytes"] = (lengths * MIB).astype(np.uint64)
    assert memory_findings(case) == []


def test_torch_that_has_to_give_memory_back_again_and_again() -> None:
    def reported_by(retries: object) -> Case:
        memory = lambda number: {"retries": retries if number == 1 else 0}  # noqa: E731
        return on_gpus(JOB, gpus(2), device_memory=memory)

    (found,) = memory_findings(reported_by(12))
    assert (found.code, [culprit.rank for culprit in found.culprits]) == ("oom-risk", [1])
    assert found.severity is Severity.WARNING
    assert memory_findings(reported_by(1)) == []
    assert memory_findings(reported_by("many")) == [], "a certificate is input from somebody else"


def test_memory_that_is_full_as_soon_as_the_limit_says_is_critical() -> None:
    case = growing_on_devices(0, 2)
    step = diagnose(case).step_seconds
    (growth,) = find_growing_devices(case, 64 * MIB)
    assert step is not None
    assert growth.left is not None
    assert equal_counts_as(case, "oom-risk", "soon", growth.left[1] * step) == "less"
