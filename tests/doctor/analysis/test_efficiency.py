"""Parallel efficiency of jobs with known truth, and its laws."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mgpu_probes.inprocess.layout import PHASES

from mgpu_doctor.analysis.cost.what_if import Efficiency, efficiency
from mgpu_doctor.analysis.steps.step_alignment import join
from mgpu_doctor.analysis.steps.work_and_wait import attribute
from mgpu_doctor.diagnosis import diagnose
from tests.support.pipelines import Pipeline, pipeline_case
from tests.support.seeds import at_most
from tests.support.synthetic import Fault, Synthetic, synthetic_case

WORK = 0.0267
"""Seconds of own work of a step in `synthetic.BASE`."""
STEADY: dict[str, Any] = {"noise": 0.0, "spikes": 0.0, "asymmetry": 0.0}


def measure_efficiency(job: Synthetic) -> Efficiency:
    measured = efficiency(attribute(join(synthetic_case(job).ranks)))
    assert isinstance(measured, Efficiency)
    return measured


def test_even_ranks_lose_what_their_data_takes_to_move() -> None:
    found = measure_efficiency(Synthetic(**STEADY, communication=0.3 * WORK))
    assert found.load_balance == pytest.approx(1)
    assert found.communication == pytest.approx(1 / 1.3, rel=1e-4)
    assert found.parallel == pytest.approx(1 / 1.3, rel=1e-4)


def test_a_straggler_lowers_the_load_balance_alone() -> None:
    slow = Synthetic(**STEADY, communication=0.0, faults=[Fault(2, "input", 1e3 * WORK)])
    found = measure_efficiency(slow)
    assert found.load_balance == pytest.approx((3 + 2) / 4 / 2, rel=1e-4)
    assert found.communication == pytest.approx(1)


def test_work_that_is_uneven_in_turn_is_no_lasting_imbalance() -> None:
    turns = [Fault(rank, "forward", 1e3 * WORK, start=rank, every=4) for rank in range(4)]
    found = measure_efficiency(Synthetic(**STEADY, steps=165, communication=0.0, faults=turns))
    assert found.load_balance == pytest.approx(1, abs=0.01)
    assert found.communication == pytest.approx((1 + 1 / 4) / 2, rel=0.01)


@settings(deadline=None, max_examples=at_most(30))
@given(
    ranks=st.integers(2, 9),
    seed=st.integers(0, 99),
    communication=st.floats(0, 0.05),
    slow=st.floats(0, 100),
)
def test_its_laws(ranks: int, seed: int, communication: float, slow: float) -> None:
    job = Synthetic(ranks=ranks, steps=40, seed=seed, communication=communication)
    even = measure_efficiency(job)
    uneven = measure_efficiency(Synthetic(**{**vars(job), "faults": [Fault(1, "forward", slow)]}))
    for one in (even, uneven):
        assert 0 < one.load_balance <= 1
        assert 0 < one.communication <= 1
        assert one.parallel == one.load_balance * one.communication
    assert uneven.communication >= even.communication - 0.05
    assert slow < 5 or uneven.load_balance < even.load_balance


def test_steps_that_were_not_measured_count_nothing() -> None:
    case = synthetic_case(Synthetic(steps=60))
    joined = join(case.ranks)
    lost = joined.steps[10:20]
    for rank in case.ranks:
        rank.steps["phases"][lost, PHASES.index("wait")] *= 50
        rank.steps["wall_ns"][lost] *= 50
    case.ranks[1].steps["phases"][lost] = np.nan
    measured = efficiency(attribute(join(case.ranks)))
    assert isinstance(measured, Efficiency)
    assert measured.parallel == pytest.approx(
        measure_efficiency(Synthetic(steps=60)).parallel, rel=0.05
    )


@pytest.mark.parametrize(
    ("job", "reason"),
    [
        (Synthetic(ranks=1), "a single rank"),
        (Synthetic(birth={"clock": "host"}, device="cuda:0"), "the host timed the phases"),
        (Synthetic(steps=0), "no rank recorded a training step"),
    ],
)
def test_where_it_cannot_be_known_it_says_why(job: Synthetic, reason: str) -> None:
    diagnosis = diagnose(synthetic_case(job))
    assert diagnosis.parallel_efficiency is None
    assert diagnosis.load_balance is None
    assert reason in (diagnosis.efficiency_reason or "")


def test_a_pipeline_loses_its_bubble() -> None:
    stages, micro = 4, 4
    diagnosis = diagnose(pipeline_case(Pipeline(noise=0.0, micro_batches=micro)))
    assert diagnosis.stages == ((0,), (1,), (2,), (3,))
    assert diagnosis.load_balance == pytest.approx(1, abs=0.01)
    bubble = (stages - 1) / (micro + stages - 1)
    assert diagnosis.parallel_efficiency == pytest.approx(1 - bubble, abs=0.05)
