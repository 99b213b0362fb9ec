"""Whether a rank is host-bound, on both sides of a twentieth of its step."""

from __future__ import annotations

import pytest

from mgpu_doctor.analysis.steps.host_bound import cost_of_host_time, judge_bound
from mgpu_doctor.case.device_times import BoundBy, RunAhead


@pytest.mark.parametrize(
    ("least", "most", "at_forward", "bound"),
    [
        (0.00, 0.05, 0.00, BoundBy.HOST),
        (0.00, 0.06, 0.00, None),
        (0.00, None, 0.00, None),
        (0.06, 0.20, 0.06, BoundBy.DEVICE),
        (0.05, 0.20, 0.06, None),
        (0.06, 0.20, 0.05, None),
        (0.06, None, 0.06, BoundBy.DEVICE),
    ],
)
def test_by_how_much_a_host_is_ahead(
    least: float, most: float | None, at_forward: float, bound: BoundBy | None
) -> None:
    lead = RunAhead(least=least, most=most, at_forward=at_forward)
    assert judge_bound(lead, 1.0) is bound
    assert judge_bound(lead, None) is None
    assert judge_bound(None, 1.0) is None


def test_only_ranks_that_their_host_binds_lose_its_time() -> None:
    bounds = {0: BoundBy.HOST, 1: BoundBy.DEVICE}
    assert cost_of_host_time({0: 0.3, 1: 0.2}, bounds) == {0: 0.3, 1: 0.0}
    assert cost_of_host_time({0: 0.3, 2: 0.2}, bounds) is None
