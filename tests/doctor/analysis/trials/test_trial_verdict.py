"""Verdicts about treatments, and when a loss counts as changed."""

from __future__ import annotations

import numpy as np
import pytest

from mgpu_doctor.advice.treatment import Effect
from mgpu_doctor.analysis.trials.paired_effect import Saving
from mgpu_doctor.analysis.trials.trial_verdict import Verdict, compare_losses, is_settled, judge

CURVE = np.linspace(2.0, 1.0, 60)
GAIN, LOSS = Saving(0.1, 0.05, 0.15, True), Saving(-0.1, -0.15, -0.05, True)
NOTHING, UNSURE = Saving(0.0, -0.05, 0.05, False), Saving(0.1, -0.05, 0.2, True)


def test_of_equal_seeds_a_treatment_must_leave_each_step_as_it_is() -> None:
    same = compare_losses([CURVE, CURVE], [CURVE * (1 + 1e-5)], Effect.NOTHING)
    assert same is not None
    assert not same.is_change
    other = compare_losses([CURVE, CURVE], [CURVE[::-1]], Effect.NOTHING)
    assert other is not None
    assert other.is_change
    assert other.spread == 0


def test_what_may_change_rounding_may_change_the_third_digit() -> None:
    rounded = CURVE * 1.005
    for effect, changes in (
        (Effect.NOTHING, True),
        (Effect.ROUNDING, False),
        (Effect.CONVERGENCE, False),
    ):
        loss = compare_losses([CURVE, CURVE], [rounded], effect)
        assert loss is not None
        assert loss.is_change is changes


def test_a_job_whose_own_runs_differ_hides_smaller_changes() -> None:
    random = np.random.default_rng(1)
    plain = [CURVE + random.normal(0, 0.2, 60) for _ in range(4)]
    treated = [CURVE + random.normal(0, 0.2, 60) for _ in range(2)]
    for shift, changes in ((0.0, False), (1.0, True)):
        loss = compare_losses(plain, [run + shift for run in treated], Effect.NOTHING)
        assert loss is not None
        assert loss.is_change is changes


def test_losses_that_are_no_numbers() -> None:
    broken = np.full(60, np.nan)
    lost = compare_losses([CURVE, CURVE], [broken], Effect.CONVERGENCE)
    assert lost is not None
    assert lost.is_change
    assert compare_losses([broken, broken], [CURVE], Effect.NOTHING) is None
    assert compare_losses([CURVE], [CURVE], Effect.NOTHING) is None


@pytest.mark.parametrize(
    ("saved", "verdict", "settled"),
    [
        (GAIN, Verdict.HELPS, True),
        (LOSS, Verdict.WORSE, True),
        (NOTHING, Verdict.NO_DIFFERENCE, True),
        (UNSURE, Verdict.NO_DIFFERENCE, False),
    ],
)
def test_verdicts_by_time(saved: Saving, verdict: Verdict, settled: bool) -> None:
    assert judge(saved, None) is verdict
    assert is_settled(saved) is settled


def test_a_changed_loss_outranks_the_time() -> None:
    loss = compare_losses([CURVE, CURVE], [CURVE[::-1]], Effect.NOTHING)
    assert judge(GAIN, loss) is Verdict.CHANGES_LOSS
