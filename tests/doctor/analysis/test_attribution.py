"""Own work, wait and communication against a job with known truth."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from mgpu_probes.inprocess.layout import INPUT, OPTIMIZER, WAIT

from mgpu_doctor.analysis.cost.what_if import (
    efficiency,
    ideal,
    saved_if_faster,
    saved_without_phase,
    step_time,
)
from mgpu_doctor.analysis.statistics import medians
from mgpu_doctor.analysis.statistics.medians import column_blocks, column_medians, median_of_others
from mgpu_doctor.analysis.steps.step_alignment import Joined, join
from mgpu_doctor.analysis.steps.work_and_wait import UnattributableError, attribute, phase_excess
from tests.support.synthetic import Fault, Synthetic, make_rank, own_work, records


def joined_of(job: Synthetic) -> Joined:
    return join([make_rank(number, record) for number, record in enumerate(records(job))])


def test_own_work_is_what_the_job_really_did() -> None:
    job = Synthetic(faults=[Fault(2, "backward", milliseconds=20)])
    truth = np.sum(list(own_work(job).values()), axis=0)[5:]
    attribution = attribute(joined_of(job))
    np.testing.assert_allclose(attribution.own, truth, atol=2e-6)
    assert (attribution.own.argmax(axis=1) == 2).all()
    assert (attribution.wait[:, 2] == 0).all()


def test_communication_is_what_nobody_can_avoid() -> None:
    attribution = attribute(joined_of(Synthetic(communication=0.004, noise=0.0, spikes=0.0)))
    np.testing.assert_allclose(attribution.communication, 0.004, atol=1e-6)
    assert attribution.wait.min() >= 0


def test_communication_measured_by_a_rank_counts_as_standing() -> None:
    steps = records(Synthetic(ranks=2))
    for rank_records in steps:
        rank_records["phases"][:, 5] = 0.001
        rank_records["phases"][:, WAIT] -= 0.001
    ranks = [make_rank(number, records) for number, records in enumerate(steps)]
    np.testing.assert_allclose(
        attribute(join(ranks)).own, attribute(joined_of(Synthetic(ranks=2))).own, atol=1e-6
    )


def test_unmeasured_wait_is_an_honest_refusal() -> None:
    steps = records(Synthetic(ranks=2))
    steps[1]["phases"][:, WAIT] = np.nan
    ranks = [make_rank(number, records) for number, records in enumerate(steps)]
    with pytest.raises(UnattributableError, match="not measured on rank 1"):
        attribute(join(ranks))


def test_ranks_measured_a_few_at_a_time_are_measured_like_all_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    joined = joined_of(Synthetic(ranks=5, faults=[Fault(2, "backward", milliseconds=20)]))
    whole = attribute(joined)
    even, efficient = ideal(whole), efficiency(whole)
    monkeypatch.setattr(medians, "BLOCK", 2 * len(whole.own))
    assert len([*column_blocks(whole.own)]) == 3
    parts = attribute(joined)
    np.testing.assert_array_equal(parts.communication, (whole.wall - whole.own).min(axis=1))
    np.testing.assert_array_equal(
        parts.by_column(lambda columns: column_medians(parts.wait_of(columns))),
        np.median(whole.wait, axis=0),
    )
    np.testing.assert_array_equal(parts.newest(7).excess, whole.excess[-7:])
    assert ideal(parts).step_seconds == pytest.approx(even.step_seconds, rel=1e-12)
    assert efficiency(parts) == efficient


def test_what_if_predicts_the_step_time_without_the_fault() -> None:
    slow = joined_of(Synthetic(faults=[Fault(2, "optimizer", milliseconds=12)]))
    attribution = attribute(slow)
    saved = saved_if_faster(attribution, {2: 0.012})
    measured = joined_of(Synthetic()).step_seconds / slow.step_seconds
    assert 1 - saved == pytest.approx(measured, rel=0.02)
    assert saved_if_faster(attribution, {0: 0.012}) == pytest.approx(0, abs=1e-3)
    assert step_time(attribution.own, attribution.communication) == pytest.approx(
        slow.step_seconds, rel=0.01
    )
    whole = ideal(attribution)
    assert whole.step_seconds == pytest.approx(slow.step_seconds, rel=0.01)
    assert whole.ideal_seconds < slow.step_seconds - 0.01
    assert whole.waste_fraction == pytest.approx(1 - whole.ideal_seconds / whole.step_seconds)


@pytest.mark.parametrize("meets", [1, 8])
def test_waste_is_held_against_the_steps_as_they_were(meets: int) -> None:
    """Ranks that meet at each eighth step do not wait for the slowest of every one."""
    job = joined_of(Synthetic(ranks=2, steps=125, noise=0.3, meets=meets))
    whole = ideal(attribute(job))
    assert whole.step_seconds == pytest.approx(job.step_seconds, rel=0.01)
    assert (whole.waste_fraction > 0.05) == (meets == 1)


def test_what_if_without_a_phase() -> None:
    job = joined_of(
        Synthetic(
            noise=0,
            spikes=0,
            asymmetry=0,
            faults=[Fault(r, "input", milliseconds=9.5) for r in range(4)],
        )
    )
    saved = saved_without_phase(job, attribute(job), INPUT)
    assert saved == pytest.approx(0.010 / job.step_seconds, rel=0.01)


def test_phase_excess_names_the_phase() -> None:
    job = joined_of(Synthetic(faults=[Fault(0, "optimizer", milliseconds=5)]))
    medians = np.median(phase_excess(job, OPTIMIZER), axis=0)
    assert medians[0] == pytest.approx(0.005, rel=0.05)
    assert np.abs(medians[1:]).max() < 0.0005


@given(
    arrays.arrays(
        np.float64,
        st.tuples(st.integers(1, 5), st.integers(1, 7)),
        elements=st.one_of(st.floats(-100, 100), st.just(float("nan"))),
    )
)
def test_median_of_others_is_the_plain_definition(values: np.ndarray) -> None:
    found = median_of_others(values)
    for row in range(values.shape[0]):
        for column in range(values.shape[1]):
            others = np.delete(values[row], column)
            others = others[~np.isnan(others)]
            if len(others):
                assert found[row, column] == pytest.approx(np.median(others))
            else:
                assert np.isnan(found[row, column])
