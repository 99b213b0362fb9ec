"""The recent progress of a job by its newest records, and what they do not show."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest

from mgpu_doctor.case.model import Case, State
from mgpu_doctor.case.process_metadata import Loader
from mgpu_doctor.live.frame import NO_PROGRESS
from mgpu_doctor.live.job_progress import NEWEST_STEPS, measure_progress
from tests.support.synthetic import Synthetic, make_case, make_rank, records

STEP = 0.03
JOB = Synthetic(
    ranks=4, steps=60, noise=0, spikes=0, asymmetry=0, communication=0, base={"forward": STEP}
)


def case_of(changes: dict[str, Any] | None = None, *, idle: float = 0.0, **job: Any) -> Case:
    """Four ranks of equal steps of 30 ms. `changes`: fields of all ranks."""
    made = records(JOB)
    for steps in made:
        steps["samples"], steps["tokens"], steps["loss"] = 3, 0, 2.0
    ranks = [make_rank(at, steps, **(changes or {})) for at, steps in enumerate(made)]
    newest = float(made[0]["end_ns"][-1]) * 1e-9
    return replace(make_case(ranks, **job), observed=newest + idle)


def test_of_no_step_nothing_is_known() -> None:
    assert measure_progress(make_case([])) == NO_PROGRESS
    assert measure_progress(make_case([make_rank(0, records(JOB)[0][:0])])) == NO_PROGRESS
    assert NO_PROGRESS.rate is None


def test_it_tells_of_the_newest_steps_of_all_ranks() -> None:
    case = case_of({"probe_cost": 60 * STEP * 0.01})
    for rank in case.ranks:
        rank.steps["wall_ns"][:-NEWEST_STEPS] *= 7
        rank.steps["loss"][:-NEWEST_STEPS] = 99
    case.ranks[3].steps["loss"] = 4.0
    found = measure_progress(case)
    assert found.step_seconds == pytest.approx(STEP)
    assert found.rate == pytest.approx(1 / STEP)
    assert found.samples == pytest.approx(4 * 3 / STEP)
    assert found.tokens is None
    assert found.loss == pytest.approx((3 * 2.0 + 4.0) / 4)
    assert found.probe == pytest.approx(0.01)
    assert found.idle is None


def test_one_rank_that_does_not_tell_its_samples_leaves_them_unknown() -> None:
    case = case_of()
    case.ranks[2].steps["samples"][-1] = 0
    assert measure_progress(case).samples is None


def test_ranks_with_few_steps_count_by_their_own_time() -> None:
    case = case_of()
    late = replace(case.ranks[1], steps=case.ranks[1].steps[-3:])
    found = measure_progress(replace(case, ranks=(case.ranks[0], late)))
    assert found.samples == pytest.approx(2 * 3 / STEP)


def test_a_batch_that_several_ranks_work_on_counts_once() -> None:
    pipelines = ((0, 2), (1, 3))
    case = case_of(strategy="manual")
    assert measure_progress(case, pipelines).samples == pytest.approx(2 * 3 / STEP)
    for rank in (1, 3):
        case.ranks[rank].steps["samples"] = 0
    assert measure_progress(case, pipelines).samples == pytest.approx(2 * 3 / STEP)
    assert measure_progress(case_of(strategy="fsdp+tensor")).samples is None


def test_a_loss_that_is_no_number_is_reported_until_one_is_again() -> None:
    case = case_of()
    case.ranks[1].steps["loss"][-2] = np.inf
    assert measure_progress(case).loss == 2.0
    case.ranks[1].steps["loss"][-1] = np.nan
    assert measure_progress(case).loss == np.inf
    for rank in case.ranks:
        rank.steps["loss"] = np.nan
    assert measure_progress(case).loss is None


def test_a_job_that_stands_has_no_rate() -> None:
    found = measure_progress(case_of(idle=30.0))
    assert found.idle == pytest.approx(30.0)
    assert (found.rate, found.samples) == (None, None)
    assert found.step_seconds == pytest.approx(STEP)
    assert measure_progress(case_of(idle=5.0)).idle is None
    assert measure_progress(case_of({"state": State.EXITED}, idle=30.0)).idle is None


def test_a_probe_that_does_not_count_its_cost_has_no_share() -> None:
    assert measure_progress(case_of({"probe_cost": 0.0})).probe is None


def test_the_epoch_ends_when_the_batches_of_the_one_loader_that_fits_are_used() -> None:
    case = case_of()
    for rank in case.ranks:
        rank.steps["micro_batches"] = 2
    used = 2 * (int(case.ranks[0].steps["step"][-1]) + 1)

    def measured(*loaders: Loader) -> tuple[int | None, float | None]:
        ranks = tuple(
            replace(rank, metadata=msgspec.structs.replace(rank.metadata, loaders=loaders))
            for rank in case.ranks
        )
        going = measure_progress(replace(case, ranks=ranks))
        return going.epoch, going.epoch_left

    trained = Loader(batches=used // 2 + 20, epochs=2)
    evaluated = Loader(batches=5, epochs=3)
    epoch, left = measured(trained, evaluated)
    assert epoch == 2
    assert left == pytest.approx(40 / 2 * STEP)
    assert measured(trained, trained) == (None, None)
    assert measured(evaluated) == (None, None)
    assert measured() == (None, None)
