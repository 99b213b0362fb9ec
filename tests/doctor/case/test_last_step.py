"""Time after the last update of a job is not part of its last step."""

from __future__ import annotations

import numpy as np
import pytest
from mgpu_probes.inprocess.layout import FORWARD, OTHER

from mgpu_doctor.case.outcomes import without_rest
from mgpu_doctor.recording.columns import Packer
from tests.support.eventful_job import steps


@pytest.mark.parametrize("packed", [False, True])
def test_most_of_the_last_step_is_cut_where_it_is_in_no_phase(packed: bool) -> None:
    records = steps(0, 5)
    records["wall_ns"] = 10_000_000
    records["end_ns"] = np.arange(1, 6) * 10_000_000
    records["phases"] = 0.0
    records["phases"][:, FORWARD], records["phases"][:, OTHER] = 0.009, 0.001
    before = Packer().pack(records) if packed else records
    assert without_rest(before) is before
    records["wall_ns"][-1] += 2_000_000_000
    records["end_ns"][-1] += 2_000_000_000
    records["phases"][-1, OTHER] = 2.001
    cut = without_rest(Packer().pack(records) if packed else records)
    assert cut["wall_ns"].tolist() == pytest.approx([10_000_000] * 4 + [9_000_000], abs=200)
    assert np.diff(cut["end_ns"]).tolist() == pytest.approx([10_000_000] * 3 + [9_000_000], abs=200)
    assert cut["phases"][-1, OTHER] == 0
    assert cut["phases"][-1, FORWARD] == pytest.approx(0.009)
    assert records["phases"][-1, OTHER] == pytest.approx(2.001)  # the box stays as it is


def test_a_single_step_stays() -> None:
    records = steps(0, 1)
    records["phases"][-1, OTHER] = 100
    assert without_rest(records) is records
