"""The heatmap of ranks by steps, in the units of the findings."""

from __future__ import annotations

import numpy as np
import pytest

from mgpu_doctor.live.step_heatmap import Heatmap, make_heatmap
from tests.support.synthetic import Fault, Synthetic, synthetic_case


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_a_cell_is_the_work_beyond_the_others_whatever_their_number(ranks: int) -> None:
    job = Synthetic(
        ranks=ranks, steps=60, noise=0.0, spikes=0.0, faults=[Fault(1, "forward", factor=2.0)]
    )
    found = make_heatmap(synthetic_case(job))
    assert isinstance(found, Heatmap)
    typical = sum(job.base.values())
    slow = job.base["forward"] / typical
    assert np.median(found.excess[1]) == pytest.approx(slow, rel=0.05)
    assert np.median(found.excess[0]) <= 0.0
