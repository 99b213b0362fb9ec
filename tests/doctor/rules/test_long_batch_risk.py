"""A batch longer than any so far is predicted not to fit, if memory depends on the batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from mgpu_probes.inprocess.memory_samples import PeakMemoryHistory

from mgpu_doctor.case.host_samples import HostSample
from mgpu_doctor.case.model import Case, Outcome
from mgpu_doctor.diagnosis import diagnose
from mgpu_doctor.findings import Finding, Severity
from tests.support.gpus import GIB, gpus, on_gpus
from tests.support.metadata import with_metadata
from tests.support.synthetic import Synthetic, synthetic_case

MIB = 1 << 20
STEPS = 800
WEIGHTS = 10 * GIB
A_TOKEN = 4 * MIB
CONTEXT = GIB
JOB = Synthetic(ranks=2, steps=STEPS)

Sizes = Callable[[np.random.Generator], np.ndarray]


def varied(random: np.random.Generator) -> np.ndarray:
    return random.exponential(1000, STEPS) + 500


def peak_history(sizes: np.ndarray, peaks: np.ndarray) -> list[list[int]]:
    history, most = PeakMemoryHistory(), 0
    for step, (size, peak) in enumerate(zip(sizes, peaks, strict=True)):
        history.note_batch(8, int(size))
        most = max(most, int(peak))
        history.note_peak(step, most)
    return [list(entry) for entry in history.peaks]


def on_devices(total: float, sizes: Sizes = varied, **facts: Any) -> Case:
    """Two ranks alone on GPUs of `total` GiB, whose peaks follow their batches."""
    case = on_gpus(JOB, gpus(2, memory_total=int(total * GIB), memory_used=11 * GIB))
    random = np.random.default_rng(5)
    ranks = []
    for rank in case.ranks:
        drawn = sizes(random)
        rank.steps["tokens"], rank.steps["samples"] = drawn, 8
        peaks = WEIGHTS + A_TOKEN * drawn * random.normal(1, 0.005, STEPS)
        metadata = {
            "memory_peaks": {"device": peak_history(drawn, peaks)},
            "device_memory": {"allocated": WEIGHTS, "reserved": 11 * GIB - CONTEXT},
            **facts,
        }
        ranks.append(with_metadata(rank, **metadata))
    return replace(case, ranks=tuple(ranks))


def memory_risks(case: Case) -> list[Finding]:
    return [finding for finding in diagnose(case).findings if finding.code == "oom-risk"]


def test_the_batch_that_will_not_fit() -> None:
    (finding,) = memory_risks(on_devices(44))
    assert finding.severity is Severity.WARNING
    tokens = (44 * GIB - CONTEXT - WEIGHTS) / A_TOKEN
    (full, *_) = [item for item in finding.evidence if item.measure.startswith("smallest batch")]
    assert isinstance(full.value, (int, float))
    assert tokens * 0.995 <= full.value <= tokens * 1.05, "not before it is sure"
    assert "tokens does not fit into the device memory" in finding.title
    (bound, _) = finding.fixes
    assert bound.id == "bound-batch"
    assert bound.predicted is not None


@pytest.mark.parametrize("seed", range(4))
def test_batches_that_vary_where_there_is_room(seed: int) -> None:
    assert memory_risks(on_devices(80)) == []
    assert (
        memory_risks(on_devices(140, lambda random: random.lognormal(7 + 0.1 * seed, 0.7, STEPS)))
        == []
    )


def test_batches_that_are_cut_at_a_length_or_are_all_alike() -> None:
    cut: Sizes = lambda random: np.minimum(varied(random), 3000.0)  # noqa: E731
    assert memory_risks(on_devices(WEIGHTS / GIB + 3000 * A_TOKEN / GIB + 2, cut)) == []
    assert memory_risks(on_devices(44, lambda _: np.full(STEPS, 8192.0))) == []


def test_micro_batches_other_ranks_there_and_a_job_that_is_over_are_silent() -> None:
    over = on_devices(44)
    assert memory_risks(replace(over, job=replace(over.job, outcome=Outcome.COMPLETED))) == []
    case = on_devices(44)
    for rank in case.ranks:
        rank.steps["micro_batches"] = 4
    assert memory_risks(case) == []
    case = on_devices(44, device_uuid="GPU-0000")
    assert memory_risks(case) == [], "two ranks share one device"


@pytest.mark.parametrize(
    "peaks",
    [
        None,
        {"device": "high"},
        {"device": [[1, 2, 3]] * 9},
        {"device": [[n, 8, 10**6 - n, 10**9 * n] for n in range(9)]},
        {"device": [[n, 8, n, float("inf")] for n in range(9)]},
    ],
)
def test_a_certificate_is_input_from_somebody_else(peaks: object) -> None:
    assert memory_risks(on_devices(44, memory_peaks=peaks)) == []


def test_memory_that_grows_by_itself_is_reported_as_that() -> None:
    case = on_devices(44)
    for rank in case.ranks:
        rank.steps["device_bytes"] = WEIGHTS + rank.steps["step"].astype(np.int64) * MIB
    assert all("grows by" in finding.title for finding in memory_risks(case))


def test_a_host_that_a_long_batch_would_fill() -> None:
    case = synthetic_case(replace(JOB, ranks=1))
    (rank,) = case.ranks
    drawn = varied(np.random.default_rng(7))
    rank.steps["tokens"] = drawn
    birth = {"memory_peaks": {"host": peak_history(drawn, WEIGHTS + A_TOKEN * drawn)}}
    processes = {rank.pid or 0: (1.0, WEIGHTS)}

    def with_room(free: int) -> Case:
        sample = HostSample(1.0, None, 2, None, 20 * GIB, 20 * GIB + free, processes)
        return replace(case, ranks=(with_metadata(rank, **birth),), host_samples=(sample,))

    (found,) = memory_risks(with_room(int(1.1 * drawn.max()) * A_TOKEN))
    assert "the host memory of rank 0" in found.title
    assert memory_risks(with_room(int(3 * drawn.max()) * A_TOKEN)) == []
