"""What was and is no more."""

from __future__ import annotations

import pytest

from mgpu_doctor.analysis.steps.align import join
from mgpu_doctor.analysis.steps.attribution import attribute
from mgpu_doctor.analysis.stragglers.ended import find_ended
from mgpu_doctor.analysis.stragglers.stragglers import Straggler, find_stragglers
from mgpu_doctor.case.model import Case
from tests.support.fleets import Fleet, Slow, case_of, simulate
from tests.support.synthetic import Fault, Synthetic, oversubscribed, synthetic_case

Both = tuple[tuple[Straggler, ...], tuple[Straggler, ...]]


def examined(case: Case) -> Both:
    """Those that still are slow, and those that were."""
    joined = join(case.ranks)
    attribution = attribute(joined)
    lasting = find_stragglers(joined, attribution)
    return lasting, find_ended(joined, attribution, lasting)


@pytest.mark.parametrize("ranks", [2, 4, 40])
@pytest.mark.parametrize(
    ("start", "stop"), [(300, 400), (0, 90), (20, 600)], ids=["short", "from the start", "long"]
)
def test_a_fault_that_is_over_is_told_with_its_end(ranks: int, start: int, stop: int) -> None:
    for seed in range(3):
        fault = Fault(1, "forward", milliseconds=6, start=start, stop=stop)
        lasting, (found,) = examined(
            synthetic_case(Synthetic(ranks=ranks, steps=700, seed=seed, faults=[fault]))
        )
        assert lasting == ()
        assert found.rank == 1
        assert found.until is not None
        assert abs(found.until - stop) <= 4
        assert abs((found.since or 0) - start) <= 4
        assert found.excess == pytest.approx(0.006, rel=0.2)


def test_two_one_after_the_other_and_one_that_lasts() -> None:
    faults = [
        Fault(1, "forward", milliseconds=6, start=50, stop=150),
        Fault(2, "input", milliseconds=6, start=200, stop=300),
        Fault(3, "optimizer", milliseconds=6, start=400),
    ]
    (lasting,), ended = examined(synthetic_case(Synthetic(ranks=8, steps=500, faults=faults)))
    assert (lasting.rank, lasting.until) == (3, None)
    assert [one.rank for one in ended] == [1, 2]


def test_nothing_ended_in_healthy_jobs() -> None:
    for seed in range(12):
        for case in (
            synthetic_case(oversubscribed(steps=300, seed=seed)),
            synthetic_case(Synthetic(ranks=2, steps=300, seed=seed)),
            case_of(simulate(Fleet(24, 0.03, correlation=0.8), 300, seed)[0]),
        ):
            assert examined(case) == ((), ())


def test_too_few_steps_tell_nothing() -> None:
    assert examined(case_of(simulate(Fleet(4, 0.03), 27, 0, Slow(0.5, 0, 10))[0])) == ((), ())
