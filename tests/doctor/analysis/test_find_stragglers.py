"""The right rank and phase of stragglers, and no finding on healthy jobs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mgpu_probes.inprocess.layout import PHASES as PHASES_OF_A_BOX

from mgpu_doctor.analysis.measures import measure
from mgpu_doctor.analysis.stragglers.persistent_stragglers import Straggler
from tests.support.per_step_jobs import case_of_seconds, healthy
from tests.support.seeds import at_most, few_or_sweep
from tests.support.synthetic import (
    BASE,
    Fault,
    Synthetic,
    make_case,
    make_rank,
    oversubscribed,
    records,
    synthetic_case,
)

PHASES = ("input", "transfer", "forward", "backward", "optimizer", "other")


def stragglers(job: Synthetic) -> tuple[Straggler, ...]:
    found = measure(synthetic_case(job)).stragglers
    assert found is not None
    return found


def main_phase(one: Straggler) -> str:
    return max(one.by_phase, key=lambda phase: one.by_phase[phase] or 0.0)


@few_or_sweep(1, 3)
@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("make", [Synthetic, oversubscribed])
def test_twenty_milliseconds(make: type[Synthetic], phase: str, ranks: int, seeds: range) -> None:
    for seed in seeds:
        culprit = seed % ranks
        fault = Fault(culprit, phase, milliseconds=20)
        found = stragglers(make(ranks=ranks, steps=55, seed=seed, faults=[fault]))
        assert [one.rank for one in found] == [culprit]
        assert main_phase(found[0]) == phase
        assert found[0].excess == pytest.approx(0.020, rel=0.35)
        assert found[0].since is None


@few_or_sweep(1, 3)
@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("meets", [2, 4, 10])
@pytest.mark.parametrize("make", [Synthetic, oversubscribed])
def test_ranks_that_meet_now_and_then(
    make: type[Synthetic], meets: int, ranks: int, seeds: range
) -> None:
    for seed in seeds:
        assert stragglers(make(ranks=ranks, seed=seed, meets=meets)) == ()
        fault = Fault(seed % ranks, "forward", milliseconds=20)
        (found,) = stragglers(make(ranks=ranks, seed=seed, meets=meets, faults=[fault]))
        assert found.rank == seed % ranks
        assert found.in_collectives_of_others - found.in_collectives > 0.5 * found.excess


@pytest.mark.parametrize("ranks", [2, 4])
def test_meetings_so_long_that_they_look_like_warm_up_break_no_regularity(ranks: int) -> None:
    """The first one is short, as the fault has just begun; the next ones are left out."""
    fault = Fault(1, "forward", milliseconds=250, start=4)
    case = synthetic_case(Synthetic(ranks=ranks, meets=6, faults=[fault]))
    measures = measure(case)
    assert measures.joined is not None
    assert {5, 11, 17, 23} - set(measures.joined.steps.tolist()) == {11, 17}
    assert [one.rank for one in measures.stragglers or ()] == [1]


def test_waits_by_chance_are_no_meetings() -> None:
    job = Synthetic(ranks=2, meets=1000, faults=[Fault(1, "forward", milliseconds=20)])
    steps = records(job)
    for at in (20, 22, 50, 51, 53, 90, 110):
        steps[0]["phases"][at, PHASES_OF_A_BOX.index("wait")] = 0.5
    case = make_case([make_rank(number, records) for number, records in enumerate(steps)])
    assert measure(case).stragglers == ()


@few_or_sweep(1, 3)
@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("factor", [1.3, 1.1])
@pytest.mark.parametrize("phase", ["forward", "backward", "optimizer", "input"])
def test_a_phase_by_a_factor(phase: str, factor: float, ranks: int, seeds: range) -> None:
    base = {**BASE, phase: 0.020}  # so that a tenth of it is worth finding
    for seed in seeds:
        culprit = seed % ranks
        fault = Fault(culprit, phase, factor=factor)
        found = stragglers(Synthetic(ranks=ranks, seed=seed, base=base, faults=[fault]))
        assert [one.rank for one in found] == [culprit]
        assert main_phase(found[0]) == phase


@few_or_sweep(1, 3)
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_thirty_percent_of_the_step_on_an_oversubscribed_machine(ranks: int, seeds: range) -> None:
    for seed in seeds:
        faults = [Fault(1, phase, factor=1.45) for phase in BASE]
        found = stragglers(oversubscribed(ranks=ranks, steps=75, seed=seed, faults=faults))
        assert [one.rank for one in found] == [1]


@few_or_sweep(12, 70)
@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("make", [Synthetic, oversubscribed])
@pytest.mark.slow
def test_silence_on_healthy_jobs(make: type[Synthetic], ranks: int, seeds: range) -> None:
    alarms = {
        seed: found
        for seed in seeds
        if (found := stragglers(make(ranks=ranks, steps=40 + 3 * seed, seed=seed)))
    }
    assert alarms == {}


@few_or_sweep(8, 30)
@pytest.mark.parametrize("make", [Synthetic, oversubscribed])
def test_silence_on_rank_0_logging_one_percent(make: type[Synthetic], seeds: range) -> None:
    logging = [Fault(0, "other", milliseconds=0.25)]
    for seed in seeds:
        assert stragglers(make(seed=seed, faults=logging)) == ()


def test_stalls_now_and_then_are_not_persistent() -> None:
    for every in (10, 20):
        stalls = [Fault(1, "backward", milliseconds=400, every=every)]
        assert stragglers(Synthetic(steps=200, faults=stalls)) == ()


def test_stalls_of_changing_ranks_are_not_persistent() -> None:
    stalls = [Fault(rank, "other", milliseconds=30, start=rank, every=4) for rank in range(4)]
    assert stragglers(Synthetic(steps=200, faults=stalls)) == ()


def test_a_late_onset_is_dated() -> None:
    (found,) = stragglers(Synthetic(steps=300, faults=[Fault(3, "forward", 15, start=200)]))
    assert found.rank == 3
    assert found.since is not None
    assert abs(found.since - 200) <= 3
    assert found.steps <= 103


@pytest.mark.parametrize(
    ("milliseconds", "steps", "reported"),
    [(3, 140, False), (3, 260, True), (12, 140, True)],
    ids=["a tenth for a second", "it lasts", "it is large"],
)
def test_a_core_that_is_weak_for_a_second_is_nobodys_fault(
    milliseconds: float, steps: int, *, reported: bool
) -> None:
    """Steps of some 20 ms; slow from step 100 on."""
    fault = Fault(1, "backward", milliseconds, start=100)
    quick = {"input": 0.001, "forward": 0.006, "backward": 0.009, "optimizer": 0.002}
    found = stragglers(Synthetic(ranks=2, steps=steps, base=quick, faults=[fault]))
    assert [one.rank for one in found] == ([1] if reported else [])


@pytest.mark.parametrize(("compared", "reported"), [(48, False), (52, True)])
def test_a_large_excess_that_has_taken_little_time_in_all_is_not_reported(
    compared: int, *, reported: bool
) -> None:
    """Twice the others' work, 8 ms more per step, for 0.38 and 0.42 s."""
    fault = Fault(1, "optimizer", milliseconds=8)
    quick = {"input": 0.001, "forward": 0.003, "backward": 0.003, "optimizer": 0.001}
    job = Synthetic(ranks=2, steps=5 + compared, noise=0.01, base=quick, faults=[fault])
    assert [one.rank for one in stragglers(job)] == ([1] if reported else [])


def test_a_fault_that_is_over_is_not_blamed() -> None:
    assert stragglers(Synthetic(steps=300, faults=[Fault(3, "forward", 15, stop=200)])) == ()


def test_two_culprits_are_both_named_and_share_the_cost() -> None:
    faults = [Fault(1, "forward", milliseconds=20), Fault(2, "input", milliseconds=15)]
    first, second = stragglers(Synthetic(ranks=5, faults=faults))
    assert (first.rank, main_phase(first)) == (1, "forward")
    assert (second.rank, main_phase(second)) == (2, "input")
    whole = first.step_seconds
    assert first.saved == pytest.approx(0.005 / whole, rel=0.2)
    assert second.saved == pytest.approx(0.015 / whole, rel=0.2)


def test_a_slow_half_is_not_accused_where_more_than_half_are_slow() -> None:
    faults = [Fault(rank, "forward", milliseconds=20) for rank in range(3)]
    assert stragglers(Synthetic(ranks=4, faults=faults)) == ()


def test_two_ranks_of_which_the_other_does_not_wait() -> None:
    """Without a majority the wait must confirm: here the slower rank's collectives are as long."""
    steps = records(Synthetic(ranks=2, faults=[Fault(1, "other", milliseconds=10)]))
    wait = steps[1]["phases"][:, 4]
    wait[:] = steps[0]["phases"][:, 4]
    steps[1]["wall_ns"] += 10_000_000
    found = measure(
        make_case([make_rank(n, records) for n, records in enumerate(steps)])
    ).stragglers
    assert found == ()


def test_missing_ranks_unequal_lengths_and_unmeasured_phases() -> None:
    steps = records(Synthetic(ranks=4, faults=[Fault(2, "backward", milliseconds=20)]))
    for rank_records in steps:
        rank_records["phases"][:, 1] = np.nan  # no transfer on this machine
        rank_records["phases"][:, 7:9] = np.nan
    steps[3]["phases"][20:25, 4] = np.nan  # its wait was not seen for some steps
    ranks = [make_rank(n, records[: 120 - 7 * n]) for n, records in enumerate(steps) if n != 1]
    (found,) = measure(make_case(ranks, world_size=4)).stragglers or ()
    assert found.rank == 2
    assert found.by_phase["transfer"] is None


@settings(deadline=None, max_examples=at_most(40))
@given(
    ranks=st.sampled_from([2, 3, 4, 8]),
    culprit=st.integers(0, 7),
    phase=st.sampled_from(PHASES),
    milliseconds=st.floats(0, 60),
    noise=st.floats(0.005, 0.3),
    steps=st.integers(25, 150),
    seed=st.integers(0, 10**6),
)
def test_a_victim_is_never_blamed(
    *,
    ranks: int,
    culprit: int,
    phase: str,
    milliseconds: float,
    noise: float,
    steps: int,
    seed: int,
) -> None:
    fault = Fault(culprit % ranks, phase, milliseconds=milliseconds)
    job = Synthetic(ranks=ranks, steps=steps, seed=seed, noise=noise, faults=[fault])
    assert {straggler.rank for straggler in stragglers(job)} <= {culprit % ranks}


@pytest.mark.parametrize(("gap", "named"), [(4, [1]), (8, [1]), (10, [])])
def test_ranks_that_synchronize_at_irregular_distances_show_no_wait(
    gap: int, named: list[int]
) -> None:
    """Every fourth step, but for one distance."""
    work = healthy(Synthetic(ranks=2, steps=120))
    work["forward"][:, 1] += 0.02
    case = case_of_seconds(work)
    own = np.sum(list(work.values()), axis=0)
    meetings = [*range(3, 60, 4), *range(59 + gap, 120, 4)]
    standing = np.zeros_like(own)
    first = 0
    for meeting in meetings:
        since = own[first : meeting + 1].sum(axis=0)
        standing[meeting] = since.max() - since + 0.002
        first = meeting + 1
    for rank in case.ranks:
        assert rank.rank is not None
        mine = standing[:, rank.rank]
        rank.steps["phases"][:, PHASES_OF_A_BOX.index("wait")] = mine
        rank.steps["wall_ns"] = ((own[:, rank.rank] + mine) * 1e9).astype(np.int64)
        rank.steps["end_ns"] = 10**12 + np.cumsum(rank.steps["wall_ns"])
    found = measure(case).stragglers
    assert found is not None
    assert [one.rank for one in found] == named
