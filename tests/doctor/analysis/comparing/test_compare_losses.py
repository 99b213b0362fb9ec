"""Time to a loss."""

from __future__ import annotations

import numpy as np
import pytest

from mgpu_doctor.analysis.comparing.compared_run import SMOOTHED, Losses, losses_of, target_of
from mgpu_doctor.case.model import Case
from tests.support.compared_runs import fed_case
from tests.support.synthetic import Synthetic


def falling(rate: float) -> Case:
    """The loss falls by a share of itself in each step of 30 ms."""
    case = fed_case(Synthetic(ranks=2, noise=0, spikes=0, asymmetry=0), 8)
    for rank in case.ranks:
        rank.steps["loss"] = 4 * (1 - rate) ** np.arange(len(rank.steps))
    return case


def test_the_run_that_learns_faster_is_there_sooner() -> None:
    slow, fast = losses_of(falling(0.01).ranks), losses_of(falling(0.02).ranks)
    assert slow is not None
    assert fast is not None
    target = target_of([slow, fast])
    assert target is not None
    assert target == slow.mean[-1] == slow.mean.min()
    late, soon = slow.seconds_to(target), fast.seconds_to(target)
    assert late == pytest.approx(slow.seconds[-1])
    assert soon is not None
    assert soon < 0.6 * slow.seconds[-1]
    assert slow.seconds_to(target / 2) is None


def test_time_counts_from_the_first_step() -> None:
    case = falling(0.01)
    found = losses_of(case.ranks)
    assert found is not None
    walls = case.ranks[0].steps["wall_ns"][:SMOOTHED].sum() * 1e-9
    assert found.seconds[0] == pytest.approx(walls)


def test_the_stage_that_knows_the_loss_tells_it() -> None:
    case = falling(0.01)
    case.ranks[0].steps["loss"] = float("nan")
    assert losses_of(case.ranks) is not None
    case.ranks[1].steps["loss"][3] = float("nan")
    assert losses_of(case.ranks) is None


def test_without_the_first_steps_nobody_knows() -> None:
    case = falling(0.01)
    for rank in case.ranks:
        rank.steps["step"] += 100
    assert losses_of(case.ranks) is None
    some = Losses(np.array([1.0]), np.array([2.0]))
    assert target_of([some, None]) is None
