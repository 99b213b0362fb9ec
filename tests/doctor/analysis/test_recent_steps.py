"""Which steps a live view judges."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from mgpu_doctor.analysis.measures import measure
from mgpu_doctor.analysis.steps.recent_steps import STEPS, recent, unmoved
from mgpu_doctor.case.flight_records import Flight
from mgpu_doctor.case.job_snapshots import JobSnapshot
from mgpu_doctor.case.model import Case, Outcome
from tests.support.synthetic import Fault, Synthetic, make_case, make_rank, records, synthetic_case


def lengths(case: Case) -> list[int]:
    return [len(rank.steps) for rank in case.ranks]


def test_a_short_job_is_left_alone() -> None:
    case = synthetic_case(Synthetic(steps=STEPS))
    assert recent(case) is case


def test_slow_steps_are_counted() -> None:
    base = {"forward": 1.0}
    case = recent(synthetic_case(Synthetic(steps=500, base=base)))
    assert lengths(case) == [STEPS] * 4
    assert case.ranks[0].steps["step"][-1] == 499


def test_of_quick_steps_a_minute_is_kept_of_all_ranks_alike() -> None:
    steps = records(Synthetic(ranks=2, steps=4000, base={"forward": 0.02}))
    steps[1] = steps[1][:-1]  # caught a step earlier
    case = recent(make_case([make_rank(number, records) for number, records in enumerate(steps)]))
    first, second = lengths(case)
    assert first == second > 10 * STEPS
    covered = case.ranks[0].steps["wall_ns"].sum() * 1e-9
    assert 59 < covered <= 61


def test_a_rank_without_steps_is_no_trouble() -> None:
    steps = records(Synthetic(ranks=2, steps=300, base={"forward": 1.0}))
    case = make_case([make_rank(0, steps[0]), make_rank(1, steps[1][:0])])
    assert lengths(recent(case)) == [STEPS, 0]


def test_a_fault_that_went_away_is_soon_no_longer_reported() -> None:
    job = Synthetic(steps=900, base={"forward": 1.0}, faults=[Fault(1, "input", 100, stop=600)])
    told = []
    for seen in range(500, 900, 10):
        steps = [record[:seen] for record in records(job)]
        ranks = [make_rank(number, records) for number, records in enumerate(steps)]
        found = measure(recent(make_case(ranks))).stragglers or ()
        told += [seen] if [one.rank for one in found] == [1] else []
    assert told[0] == 500
    assert 600 <= told[-1] <= 620
    assert told == list(range(500, told[-1] + 1, 10))


def test_what_began_before_the_window_is_not_called_from_the_start() -> None:
    slow = Fault(2, "forward", 100, start=100)
    case = synthetic_case(Synthetic(steps=600, base={"forward": 1.0}, faults=[slow]))
    (whole,) = measure(case).stragglers or ()
    assert abs((whole.since or 0) - 100) <= 2
    assert whole.since_before is None
    (newest,) = measure(recent(case)).stragglers or ()
    assert newest.since is None
    assert newest.since_before == 600 - STEPS
    (always,) = (
        measure(synthetic_case(Synthetic(faults=[Fault(2, "forward", 10)]))).stragglers or ()
    )
    assert (always.since, always.since_before) == (None, None)
    assert np.isfinite(newest.saved)


def looked_at(*moments: float) -> Case:
    """A job whose newest step ended at 0, with looks and dumps so many seconds later."""
    case = synthetic_case(Synthetic(ranks=2, steps=40))
    end = max(rank.steps["end_ns"][-1] * 1e-9 + rank.clock_offset for rank in case.ranks)
    return replace(
        case,
        job_snapshots=tuple(JobSnapshot(end + at, None, 2, (), ()) for at in moments),
        flights=tuple(Flight(0, "dump", None, (), at=end + at) for at in moments),
        job=replace(case.job, outcome=Outcome.RUNNING),
    )


def test_what_the_job_has_outlived_is_reported_no_more() -> None:
    case = looked_at(-3.0, -1.0, 5.0, 6.0)
    left = unmoved(case)
    assert left.job_snapshots == case.job_snapshots[2:]
    assert left.flights == case.flights[2:]


def test_a_step_that_ends_because_the_others_were_stopped_is_no_progress() -> None:
    """Its collective raised an exception once the first rank was gone: the hang was before."""
    case = looked_at(-0.01, -0.001, 5.0)
    end = case.job_snapshots[-1].at - 5.0
    step = float(case.ranks[0].steps["wall_ns"][-1]) * 1e-9
    assert step > 0.01
    for ended, kept in ((end + 0.1, 3), (end + 60.0, 1)):
        ranks = (replace(case.ranks[0], ended=ended), *case.ranks[1:])
        stopped = replace(case, ranks=ranks, job=replace(case.job, asked="SIGTERM"))
        assert len(unmoved(stopped).job_snapshots) == kept
        assert len(unmoved(replace(stopped, job=case.job)).job_snapshots) == 1


def test_nothing_stands_in_a_job_that_has_completed() -> None:
    case = looked_at(5.0)
    left = unmoved(replace(case, job=replace(case.job, outcome=Outcome.COMPLETED)))
    assert (left.job_snapshots, left.flights) == ((), ())


def test_a_dump_that_does_not_tell_when_it_was_made_is_kept() -> None:
    case = looked_at(5.0)
    undated = tuple(replace(flight, at=None) for flight in case.flights)
    assert unmoved(replace(case, flights=undated)).flights == undated
