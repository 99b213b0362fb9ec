"""What is measured of one short run: its steps, its losses and its peak memory."""

from __future__ import annotations

import numpy as np
import pytest

from mgpu_doctor.advice.treatment import Effect
from mgpu_doctor.analysis.trials.trial_run import Shortfall, TrialRun, measure_run
from mgpu_doctor.analysis.trials.trial_verdict import compare_losses
from tests.support.synthetic import Synthetic, synthetic_case

MIB = 1 << 20


def measured(loss: float, *, steps: int = 60, least: int = 20, peak: int = 0) -> object:
    history = [[3, 0, 0, 100 * MIB], [9, 0, 0, peak]] if peak else []
    case = synthetic_case(
        Synthetic(ranks=2, steps=steps, birth={"memory_peaks": {"host": history}})
    )
    for rank in case.ranks:
        rank.steps["loss"] = loss
    return measure_run(case, 10, 2000, least)


def test_a_loss_that_is_no_number_is_another_than_one_that_nobody_reports() -> None:
    numbers, broken, unknown = (measured(loss) for loss in (2.0, np.inf, np.nan))
    assert isinstance(numbers, TrialRun)
    assert isinstance(broken, TrialRun)
    assert isinstance(unknown, TrialRun)
    assert unknown.losses is None
    assert numbers.losses is not None
    assert broken.losses is not None
    change = compare_losses([numbers.losses] * 2, [broken.losses], Effect.CONVERGENCE)
    assert change is not None
    assert change.is_change


def test_the_peak_that_the_kernel_counted() -> None:
    run = measured(2.0, peak=900 * MIB)
    assert isinstance(run, TrialRun)
    assert (run.memory_bytes, run.is_gpu_memory) == (900 * MIB, False)


@pytest.mark.parametrize(("least", "count"), [(8, 10), (20, None)])
def test_steps_that_suffice_in_a_small_budget(least: int, count: int | None) -> None:
    run = measured(2.0, steps=20, least=least)
    if count is None:
        assert run is Shortfall.TOO_SHORT
    else:
        assert isinstance(run, TrialRun)
        assert len(run.seconds) == count
