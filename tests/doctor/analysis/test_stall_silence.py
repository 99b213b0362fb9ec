"""No stalls where a machine interrupts healthy ranks: any rank, any moment, any phase."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mgpu_doctor.analysis.measures import measure
from mgpu_doctor.analysis.stalls.periodic_stalls import Stalls
from tests.support.per_step_jobs import Seconds, case_of_seconds, healthy
from tests.support.seeds import at_most, few_or_sweep
from tests.support.synthetic import Synthetic, oversubscribed, synthetic_case


def interrupted(
    work: dict[str, Seconds], rate: float, tail: float, scale: float, seed: int
) -> dict[str, Seconds]:
    """Interruptions with Pareto lengths, in proportion to the phases' durations."""
    random = np.random.default_rng(seed)
    names = list(work)
    share = np.array([work[name].sum() for name in names])
    hit = np.argwhere(random.random(work[names[0]].shape) < rate)
    for step, rank in hit:
        phase = names[random.choice(len(names), p=share / share.sum())]
        work[phase][step, rank] += scale * (0.2 + random.pareto(tail))
    return work


@few_or_sweep(8, 40)
@pytest.mark.parametrize("ranks", [2, 4, 8, 32])
@pytest.mark.parametrize("make", [Synthetic, oversubscribed])
@pytest.mark.slow
def test_ordinary_noise(make: type[Synthetic], ranks: int, seeds: range) -> None:
    alarms = {
        seed: found
        for seed in seeds
        if (
            found := measure(
                synthetic_case(make(ranks=ranks, steps=30 + 7 * seed, seed=seed, spikes=0.02))
            ).stalls
        )
    }
    assert alarms == {}


@few_or_sweep(6, 40)
@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize(
    ("rate", "tail", "scale"),
    [(0.01, 1.5, 0.02), (0.03, 1.1, 0.05), (0.05, 2.0, 0.1), (0.1, 1.5, 0.02)],
)
def test_a_machine_that_interrupts_now_and_then(
    rate: float, tail: float, scale: float, ranks: int, seeds: range
) -> None:
    alarms: list[tuple[int, tuple[Stalls, ...]]] = []
    for seed in seeds:
        work = healthy(Synthetic(ranks=ranks, steps=40 + 9 * seed, seed=seed))
        stalls = measure(case_of_seconds(interrupted(work, rate, tail, scale, seed))).stalls
        if stalls:
            alarms.append((seed, stalls))
    assert alarms == []


@dataclass(frozen=True)
class Machine:
    """How rough a healthy job's machine is."""

    job: Synthetic
    rate: float
    tail: float


MACHINES = st.builds(
    Machine,
    job=st.builds(
        Synthetic,
        ranks=st.integers(2, 8),
        steps=st.integers(20, 300),
        noise=st.floats(0.01, 0.3),
        shared_noise=st.floats(0, 0.3),
        seed=st.integers(0, 10**6),
    ),
    rate=st.floats(0, 0.1),
    tail=st.floats(1.1, 3),
)


@settings(max_examples=at_most(25), deadline=None, derandomize=True)
@given(MACHINES)
def test_any_healthy_job(machine: Machine) -> None:
    job = machine.job
    work = interrupted(healthy(job), machine.rate, machine.tail, 0.02, job.seed)
    assert not measure(case_of_seconds(work)).stalls


@few_or_sweep(10, 30)
@pytest.mark.parametrize("steps", [20, 24, 30])
def test_short_runs(steps: int, seeds: range) -> None:
    for seed in seeds:
        work = healthy(Synthetic(ranks=2, steps=steps, seed=seed))
        stalls = measure(case_of_seconds(interrupted(work, 0.08, 1.2, 0.05, seed))).stalls
        assert not stalls
