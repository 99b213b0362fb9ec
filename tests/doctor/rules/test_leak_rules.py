"""Unlimited memory growth is reported, with the rank and when memory is full; healthy growth is
not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from mgpu_doctor.case.host_samples import HostSample
from mgpu_doctor.case.model import Case, Outcome
from mgpu_doctor.diagnosis import diagnose
from mgpu_doctor.findings import Finding, Severity
from mgpu_doctor.recording.records import HISTORY_DTYPE
from tests.support.synthetic import Synthetic, synthetic_case

MIB = 1 << 20
GIB = 1 << 30
JOB = Synthetic(ranks=2, steps=2000)


def leaks(case: Case) -> list[Finding]:
    """Of the job when it is over: while it runs, what is full soon is `oom-risk`."""
    case = replace(case, job=replace(case.job, outcome=Outcome.COMPLETED))
    return [finding for finding in diagnose(case).findings if finding.code.startswith("leak-")]


def on_device(grown: Callable[[np.ndarray, int], np.ndarray]) -> Case:
    """`grown`: bytes, of the steps of a rank."""
    case = synthetic_case(JOB)
    for number, rank in enumerate(case.ranks):
        rank.steps["device_bytes"] = 8 * GIB + grown(rank.steps["step"].astype(float), number)
    return case


def on_host(grown: Callable[[float, int], float], *, used: int = 10 * GIB) -> Case:
    """`grown`: bytes at a second, of a rank."""
    case = synthetic_case(JOB)
    first, last = (
        float(case.ranks[0].steps["end_ns"][at]) * 1e-9 + case.ranks[0].clock_offset
        for at in (0, -1)
    )
    chance = np.random.default_rng(0)
    samples = tuple(
        HostSample(
            float(at),
            50.0,
            2,
            None,
            used,
            16 * GIB,
            {
                rank.pid: (
                    1.0,
                    int(2 * GIB + grown(float(at - first), number) + chance.normal(0, MIB)),
                )
                for number, rank in enumerate(case.ranks)
                if rank.pid is not None
            },
        )
        for at in np.arange(first, last, 1.0)
    )
    return replace(case, host_samples=samples)


def test_a_rank_whose_device_fills() -> None:
    (found,) = leaks(on_device(lambda step, rank: step * MIB * (rank == 1)))
    assert (found.code, found.severity) == ("leak-device", Severity.WARNING)
    assert [culprit.rank for culprit in found.culprits] == [1]
    assert "grows by 1 MiB per step" in found.title


def on_the_host(grown: Callable[[np.ndarray, int], np.ndarray], steps: int = 100) -> Case:
    """Read by the ranks themselves, at two of three steps. `grown`: bytes, of the steps."""
    case = synthetic_case(Synthetic(ranks=2, steps=steps))
    for number, rank in enumerate(case.ranks):
        step = rank.steps["step"].astype(float)
        rank.steps["resident_bytes"] = (350 * MIB + grown(step, number)) * (step % 3 != 2)
    return case


def test_a_mebibyte_a_step_is_found_in_a_hundred_steps() -> None:
    (found,) = leaks(on_the_host(lambda step, rank: step * MIB * (rank == 1)))
    assert (found.code, [culprit.rank for culprit in found.culprits]) == ("leak-host", [1])
    assert "grows by 1 MiB per step" in found.title
    assert found.evidence[0].source == "resident at the ends of steps"


@pytest.mark.parametrize("steps", [100, 2000])
def test_a_process_that_warms_up_or_varies_is_well(steps: int) -> None:
    chance = np.random.default_rng(2)
    assert leaks(on_the_host(lambda s, _: chance.lognormal(4.0, 0.5, len(s)) * MIB, steps)) == []
    assert leaks(on_the_host(lambda step, _: 120 * MIB * (1 - np.exp(-step / 30)), steps)) == []


def test_a_slow_leak_shows_in_the_history_of_the_run() -> None:
    case = synthetic_case(JOB)
    windows = np.zeros(60, dtype=HISTORY_DTYPE)
    windows["step"] = 1000 * np.arange(1, 61)
    ranks = []
    for number, rank in enumerate(case.ranks):
        rank.steps["resident_bytes"] = 3 * GIB
        known = windows.copy()
        known["resident_bytes"] = 2 * GIB + 5 * MIB * np.arange(60) * (number == 0)
        ranks.append(replace(rank, history=known))
    (found,) = leaks(replace(case, ranks=tuple(ranks)))
    assert (found.code, [culprit.rank for culprit in found.culprits]) == ("leak-host", [0])


def test_ranks_that_all_leak_blame_nobody() -> None:
    (found,) = leaks(on_device(lambda step, _: step * MIB))
    assert found.culprits == ()
    assert "every rank" in found.title


def test_a_process_that_grows_and_when_the_host_is_full() -> None:
    (found,) = leaks(on_host(lambda at, rank: 20 * MIB * at * (rank == 0)))
    assert (found.code, [culprit.rank for culprit in found.culprits]) == ("leak-host", [0])
    assert "full in about" in found.title
    assert found.severity is Severity.WARNING


@pytest.mark.parametrize(
    "grown",
    [
        lambda _at, _: 0.0,
        lambda at, _: 800 * MIB * (1 - np.exp(-at / 4)),
        lambda at, _: 300 * MIB * (at > 20),
        lambda at, _: MIB * (at % 9) * 40,
    ],
    ids=["flat", "cache", "once", "collected"],
)
def test_healthy_hosts_are_silent(grown: Callable[[float, int], float]) -> None:
    assert leaks(on_host(grown)) == []


def test_lengths_that_vary_are_no_leak() -> None:
    chance = np.random.default_rng(1)
    assert leaks(on_device(lambda step, _: chance.lognormal(6.5, 0.8, len(step)) * MIB)) == []
    assert leaks(synthetic_case(JOB)) == [], "where nothing is known nothing is said"


def test_what_to_look_for_depends_on_where_it_leaks() -> None:
    (device,) = leaks(on_device(lambda step, rank: step * MIB * (rank == 1)))
    (host,) = leaks(on_the_host(lambda step, rank: step * MIB * (rank == 1)))
    assert "torch.cuda.memory" in device.fixes[0].how
    assert "tracemalloc" in host.fixes[0].how


@pytest.mark.parametrize(("share", "culprits"), [(0.51, [0, 1]), (0.49, [1])])
def test_a_rank_that_leaks_half_as_much_is_named_too(share: float, culprits: list[int]) -> None:
    case = synthetic_case(replace(JOB, ranks=3))
    for number, slope in enumerate((share, 1.0, 0.0)):
        rank = case.ranks[number]
        rank.steps["device_bytes"] = 8 * GIB + slope * MIB * rank.steps["step"].astype(float)
    (found,) = leaks(case)
    assert sorted(culprit.rank or 0 for culprit in found.culprits) == culprits
