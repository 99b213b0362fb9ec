"""Cells read on demand equal those of the whole array."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from mgpu_probes.inprocess.layout import BACKWARD, INPUT, PHASES

from mgpu_doctor.analysis.steps import step_cells
from mgpu_doctor.analysis.steps.step_alignment import Joined, join
from mgpu_doctor.analysis.steps.work_and_wait import attribute
from tests.support.synthetic import Synthetic, make_rank, records

MASK = np.arange(112) % 3 == 0
KEYS: list[Any] = [
    np.s_[:],
    np.s_[...],
    np.s_[7],
    np.s_[10:20],
    np.s_[:, 1],
    np.s_[:, -1, BACKWARD],
    np.s_[:, :, INPUT],
    np.s_[5:, 1:, BACKWARD],
    np.s_[5:, :, 2:4],
    np.s_[..., INPUT],
    np.s_[:, :, (INPUT, BACKWARD)],
    np.s_[:, np.array([2, 0]), BACKWARD],
    np.s_[MASK, :, BACKWARD],
    np.s_[MASK, 2],
    np.s_[np.array([3, 9]), np.array([0, 2]), BACKWARD],
    np.s_[:, np.array([0, 2]), np.array([INPUT, BACKWARD])],
]


def gapped() -> Joined:
    """Three ranks, of which one lost some records: its rows are no slice."""
    steps = records(Synthetic(ranks=3))
    steps[1] = np.delete(steps[1], [40, 41, 60])
    return join([make_rank(number, records) for number, records in enumerate(steps)])


@pytest.mark.parametrize("kept", [0, step_cells.FEW_CELLS])
@pytest.mark.parametrize("key", KEYS, ids=str)
def test_phases_are_indexed_like_an_array(
    key: Any, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_cells, "FEW_CELLS", kept)
    phases = gapped().phases
    whole = np.asarray(phases)
    assert whole.shape == phases.shape == (112, 3, len(PHASES))
    np.testing.assert_array_equal(phases[key], whole[key])


def test_fields_keep_what_is_not_known() -> None:
    steps = records(Synthetic(ranks=2))
    for rank_records in steps:
        rank_records["samples"][50:] = 32
        rank_records["gc_s"] = 0.25
    joined = join([make_rank(number, records) for number, records in enumerate(steps)])
    assert np.isnan(joined.samples[:45]).all()
    assert (joined.samples[45:] == 32).all()
    assert np.isnan(joined.tokens).all()
    assert (joined.collecting == 0.25).all()
    assert np.isnan(joined.running).all()
    assert not joined.is_device_timed


def test_some_steps_alone() -> None:
    whole = gapped()
    some = whole.between(20, 70)
    assert some.wall.shape == (50, 3)
    np.testing.assert_array_equal(some.steps, whole.steps[20:70])
    np.testing.assert_array_equal(np.asarray(some.phases), np.asarray(whole.phases)[20:70])
    np.testing.assert_array_equal(some.end, whole.end[20:70])
    attribution, part = attribute(whole), attribute(whole).between(20, 70)
    np.testing.assert_array_equal(part.wait, attribution.wait[20:70])
    assert part.steps == 50
