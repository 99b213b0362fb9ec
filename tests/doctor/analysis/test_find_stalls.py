"""Stalls: their rank, phase, frequency, period and cost."""

from __future__ import annotations

import numpy as np
import pytest

from mgpu_doctor.analysis.measures import measure
from mgpu_doctor.analysis.stalls.periodic_stalls import Stalls
from mgpu_doctor.case.model import Case
from mgpu_doctor.diagnosis import diagnose
from tests.support.per_step_jobs import case_of_seconds, healthy
from tests.support.synthetic import Fault, Synthetic, oversubscribed, synthetic_case

SEEDS = range(3)


def stalls(case: Case) -> tuple[Stalls, ...]:
    found = measure(case).stalls
    assert found is not None
    return found


def mean_step(case: Case) -> float:
    seconds = diagnose(case).step_seconds
    assert seconds is not None
    return seconds


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize(
    ("seed", "phase"), [*enumerate(["input", "forward", "backward", "optimizer", "other"])]
)
@pytest.mark.parametrize("make", [Synthetic, oversubscribed])
def test_a_rank_that_stalls_every_twentieth_step(
    make: type[Synthetic], seed: int, phase: str, ranks: int
) -> None:
    culprit = seed % ranks
    fault = Fault(culprit, phase, milliseconds=400, start=7, every=20)
    (found,) = stalls(synthetic_case(make(ranks=ranks, steps=160, seed=seed, faults=[fault])))
    assert (found.ranks, found.phase, found.period) == ((culprit,), phase, 20.0)
    assert found.seconds == pytest.approx(0.4, rel=0.05)
    first = 7 if phase == "other" else 27  # one long step in another phase may be a warm-up
    assert found.steps == tuple(range(first, 160, 20))
    assert found.count == len(found.steps)


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("phase", ["checkpoint", "evaluation", "other"])
def test_the_first_stall_may_come_during_the_warm_up(phase: str, ranks: int) -> None:
    fault = Fault(0, phase, milliseconds=3000, start=3, every=50)
    (stall,) = stalls(synthetic_case(Synthetic(ranks=ranks, steps=120, faults=[fault])))
    assert (stall.ranks, stall.phase, stall.period) == ((0,), phase, 50.0)
    assert (stall.steps, stall.since) == ((3, 53, 103), None)
    assert stall.total == pytest.approx(9.0, rel=0.05)


@pytest.mark.parametrize("phase", ["forward", "backward", "other"])
def test_compilation_on_all_ranks_is_no_stall(phase: str) -> None:
    for seed in SEEDS:
        lengths = np.random.default_rng(seed).uniform(1000, 2500, (4, 4))
        faults = [
            Fault(rank, phase, milliseconds=lengths[row, rank], start=step, stop=step + 1)
            for row, step in enumerate((1, 2, 4, 11))
            for rank in range(4)
        ]
        case = synthetic_case(Synthetic(seed=seed, faults=faults))
        assert stalls(case) == ()
        assert [finding.code for finding in diagnose(case).findings if finding.culprits] == []


def test_what_it_costs_is_the_whole_time_of_the_stalls() -> None:
    job = Synthetic(steps=206, faults=[Fault(2, "other", milliseconds=400, start=26, every=20)])
    slow, well = synthetic_case(job), synthetic_case(Synthetic(steps=206))
    (stall,) = stalls(slow)
    assert 1 - stall.saved == pytest.approx(mean_step(well) / mean_step(slow), rel=0.02)
    assert stall.total == pytest.approx(9 * 0.4, rel=0.05)
    assert stall.waited == pytest.approx(0.4, rel=0.05)


@pytest.mark.parametrize("ranks", [2, 4])
def test_without_a_period_it_takes_more_of_them(ranks: int) -> None:
    random = np.random.default_rng(5)
    work = healthy(Synthetic(ranks=ranks, steps=300))
    work["backward"][30 + random.choice(260, 16, replace=False), 1] += 0.2
    (stall,) = stalls(case_of_seconds(work))
    assert (stall.ranks, stall.phase, stall.period) == ((1,), "backward", None)


def test_two_ranks_that_stall_together() -> None:
    faults = [Fault(rank, "other", milliseconds=200, start=5, every=15) for rank in (0, 3)]
    (stall,) = stalls(synthetic_case(Synthetic(ranks=8, steps=200, faults=faults)))
    assert sorted(stall.ranks) == [0, 3]


def test_one_rank_after_the_other_at_a_regular_distance() -> None:
    work = healthy(Synthetic(ranks=4, steps=260))
    for turn, step in enumerate(range(30, 260, 20)):
        work["forward"][step, turn % 4] += 0.3
    (stall,) = stalls(case_of_seconds(work))
    assert sorted(stall.ranks) == [0, 1, 2, 3]
    assert (stall.period, stall.phase) == (20.0, "forward")


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("make", [Synthetic, oversubscribed])
@pytest.mark.parametrize("every", [2, 3, 4])
def test_frequent_stalls_are_reported_once_and_not_lost(
    every: int, make: type[Synthetic], ranks: int
) -> None:
    """Between what is persistent and what comes now and then there is no gap and no overlap."""
    for seed in SEEDS:
        fault = Fault(1, "forward", milliseconds=30, start=5, every=every)
        case = synthetic_case(make(ranks=ranks, steps=150, seed=seed, faults=[fault]))
        findings = [finding for finding in diagnose(case).findings if finding.culprits]
        assert len(findings) == 1, [one.code for one in findings]
        assert findings[0].code in ("straggler-transient", "straggler-compute")
        assert [culprit.rank for culprit in findings[0].culprits] == [1]


def test_a_stall_that_takes_two_steps_is_one() -> None:
    work = healthy(Synthetic(ranks=4, steps=200))
    for step in range(30, 200, 25):
        work["other"][step : step + 2, 2] += 0.1
    (stall,) = stalls(case_of_seconds(work))
    assert (stall.count, stall.period) == (7, 25.0)
    assert stall.seconds == pytest.approx(0.2, rel=0.05)


@pytest.mark.parametrize("phase", ["checkpoint", "evaluation"])
@pytest.mark.parametrize("ranks", [2, 4])
def test_what_the_probe_saw_itself_is_reported_by_its_name(phase: str, ranks: int) -> None:
    work = healthy(Synthetic(ranks=ranks, steps=160))
    work[phase] = np.zeros((160, ranks))
    work[phase][20::20, 0] = 0.3
    (stall,) = stalls(case_of_seconds(work))
    assert (stall.ranks, stall.phase, stall.count, stall.period) == ((0,), phase, 7, 20.0)


def test_the_tail_of_a_checkpoint_is_reported_with_it() -> None:
    """The file is opened and closed around what the probe sees of saving."""
    work = healthy(Synthetic(ranks=4, steps=160))
    work["checkpoint"] = np.zeros((160, 4))
    work["checkpoint"][20::20, 0] = 0.3
    work["other"][20::20, 0] += 0.1
    (stall,) = stalls(case_of_seconds(work))
    assert (stall.ranks, stall.phase) == ((0,), "checkpoint")


def test_another_stall_beside_checkpoints_is_reported_as_well() -> None:
    work = healthy(Synthetic(ranks=4, steps=160))
    work["checkpoint"] = np.zeros((160, 4))
    work["checkpoint"][20::20, 0] = 0.3
    work["other"][15::20, 0] += 0.2
    assert {stall.phase for stall in stalls(case_of_seconds(work))} == {"checkpoint", "other"}


def test_collections_on_all_ranks_at_moments_of_their_own() -> None:
    work = healthy(Synthetic(ranks=4, steps=260))
    collecting = np.full((260, 4), 5e-5)
    for rank in range(4):
        collecting[10 + 3 * rank :: 40, rank] = 0.15
    work["forward"] += collecting
    (stall,) = stalls(case_of_seconds(work, fields={"gc_s": collecting}))
    assert stall.phase == "gc"
    assert sorted(stall.ranks) == [0, 1, 2, 3]
    assert stall.seconds == pytest.approx(0.15)
    well = mean_step(case_of_seconds(healthy(Synthetic(ranks=4, steps=260))))
    now = mean_step(case_of_seconds(work, fields={"gc_s": collecting}))
    assert 1 - stall.saved == pytest.approx(well / now, rel=0.02)


def test_ranks_that_evaluate_alike_are_nobodys_fault() -> None:
    random = np.random.default_rng(2)
    work = healthy(Synthetic(ranks=4, steps=200))
    work["evaluation"] = np.zeros((200, 4))
    work["evaluation"][20::20] = 0.5 * np.exp(0.2 * random.standard_normal((9, 4)))
    assert stalls(case_of_seconds(work)) == ()


def test_an_evaluation_that_now_one_rank_and_now_another_is_long_at_is_everybodys() -> None:
    """On busy cores: each is three times as long as the other, in turn."""
    work = healthy(Synthetic(ranks=2, steps=200))
    work["evaluation"] = np.zeros((200, 2))
    work["evaluation"][20::40] = [0.1, 0.3]
    work["evaluation"][40::40] = [0.3, 0.1]
    assert stalls(case_of_seconds(work)) == ()


@pytest.mark.parametrize("long", [0.5, 5.0])
@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("phase", ["forward", "other", "checkpoint", "evaluation"])
def test_what_happened_once_or_twice_is_no_pattern(phase: str, times: int, long: float) -> None:
    """Only what the probe saw counts, if it took much of the time: a machine may have done the
    rest."""
    work = healthy(Synthetic(ranks=4, steps=150))
    work.setdefault(phase, np.zeros((150, 4)))[[60, 110][:times], 1] += long
    counts = [(stall.phase, stall.count) for stall in stalls(case_of_seconds(work))]
    seen = phase in ("checkpoint", "evaluation") and long > 1
    assert counts == [(phase, times)] * seen


def test_one_huge_collection_among_small_ones_is_no_pattern() -> None:
    work = healthy(Synthetic(ranks=2, steps=150))
    collecting = np.full((150, 2), 5e-5)
    collecting[70, 0] = 3.0
    work["forward"] += collecting
    assert stalls(case_of_seconds(work, fields={"gc_s": collecting})) == ()


@pytest.mark.parametrize("level", [1.1, 1.15, 1.3, 2.0])
def test_a_rank_that_got_slower_does_not_stall(level: float) -> None:
    for seed in range(6):
        work = healthy(Synthetic(ranks=4, steps=200, seed=seed))
        for seconds in work.values():
            seconds[100:, 2] *= level
        assert stalls(case_of_seconds(work)) == ()


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_rank_that_gets_slower_and_slower_does_not_stall(ranks: int) -> None:
    for seed in range(6):
        work = healthy(Synthetic(ranks=ranks, steps=300, seed=seed))
        for seconds in work.values():
            seconds[:, 1] *= np.linspace(1, 1.6, 300)
        assert stalls(case_of_seconds(work)) == ()


def test_steps_that_are_slow_for_all_ranks_are_nobodys() -> None:
    work = healthy(Synthetic(ranks=4, steps=200))
    work["input"][20::20] += 0.3
    work["input"][20::20, 1] += 0.05
    assert stalls(case_of_seconds(work)) == ()


def test_a_stall_that_nobody_waits_for_costs_nothing() -> None:
    """Where the collectives overlap with it, the others' wait does not grow."""
    case = synthetic_case(
        Synthetic(ranks=4, steps=200, faults=[Fault(1, "other", milliseconds=100, every=20)])
    )
    for rank in case.ranks[:1] + case.ranks[2:]:
        rank.steps["phases"][:, 4] = 0.002
        rank.steps["wall_ns"] = (np.nansum(rank.steps["phases"], axis=1) * 1e9).astype(np.int64)
    assert stalls(case) == ()


def stalled(
    phase: str, seconds: dict[int, float], *, steps: int = 206, every: int = 20, computed: float = 1
) -> Case:
    """Rank -> seconds of its stall in every twentieth step, of which its thread ran so much."""
    work = healthy(Synthetic(steps=steps))
    running = np.sum(list(work.values()), axis=0)
    for rank, length in seconds.items():
        extra = work.setdefault(phase, np.zeros((steps, 4)))
        extra[26::every, rank] += length
        running[26::every, rank] += computed * length
    return case_of_seconds(work, fields={"cpu_s": running})


def test_one_long_stall_counts_as_four_at_most() -> None:
    work = healthy(Synthetic(steps=206))
    work["other"][26::20, 2] += 0.2
    work["other"][46, 2] += 1.2
    (stall,) = stalls(case_of_seconds(work))
    assert (stall.ranks, stall.count) == ((2,), 9)
    assert stall.seconds == pytest.approx(0.2, rel=0.05)
    assert stall.total == pytest.approx(8 * 0.2 + 4 * 0.2, rel=0.05)


@pytest.mark.parametrize("phase", ["checkpoint", "other"])
@pytest.mark.parametrize("computed", [0.0, 0.5, 1.0])
def test_how_much_of_a_stall_the_thread_ran(phase: str, computed: float) -> None:
    (stall,) = stalls(stalled(phase, {2: 0.4}, computed=computed))
    assert stall.running == pytest.approx(computed, abs=0.02)


def test_a_thread_runs_for_all_of_a_stall_at_most() -> None:
    (stall,) = stalls(stalled("other", {2: 0.4}, computed=3))
    assert stall.running == 1


@pytest.mark.parametrize(("share", "culprits"), [(0.55, (2, 1)), (0.45, (2,))])
def test_who_saves_half_as_long_is_a_culprit_too(share: float, culprits: tuple[int, ...]) -> None:
    (stall,) = stalls(stalled("checkpoint", {2: 0.4, 1: share * 0.4}))
    assert (stall.phase, stall.ranks) == ("checkpoint", culprits)


@pytest.mark.parametrize(("share", "reported"), [(2.1, True), (1.9, False)])
def test_a_rank_evaluates_alone_if_it_takes_twice_as_long_as_the_others(
    share: float, reported: bool
) -> None:
    case = stalled("evaluation", {0: 0.2 * share, 1: 0.2, 2: 0.2, 3: 0.2})
    assert ("evaluation" in [stall.phase for stall in stalls(case)]) is reported


@pytest.mark.parametrize("others", [0.0, 0.05])
def test_how_long_the_other_ranks_evaluate_meanwhile_is_known(others: float) -> None:
    (found,) = stalls(stalled("evaluation", {0: 0.4, 1: others, 2: others, 3: others}))
    assert found.ranks == (0,)
    assert found.shared == pytest.approx(others / 0.4, rel=0.01)


@pytest.mark.parametrize(("count", "reported"), [(3, True), (2, False)])
def test_what_happened_three_times_recurs(count: int, reported: bool) -> None:
    case = stalled("checkpoint", {0: 0.4}, steps=26 + 20 * count)
    assert ([stall.count for stall in stalls(case)] == [count]) is reported


@pytest.mark.parametrize(("share", "reported"), [(0.0055, True), (0.0045, False)])
def test_what_costs_half_a_percent_is_worth_telling(share: float, reported: bool) -> None:
    work = healthy(Synthetic(steps=206, noise=0, spikes=0, asymmetry=0))
    whole = (sum(seconds[:, 0].sum() for seconds in work.values()) + 206 * 0.002) * 201 / 206
    work["checkpoint"] = np.zeros((206, 4))
    work["checkpoint"][26::20, 0] = share * whole / 9
    assert bool(stalls(case_of_seconds(work))) is reported


@pytest.mark.parametrize(("start", "since"), [(34, None), (37, 37)])
def test_the_first_stall_was_late_after_half_as_many_steps_again(
    start: int, since: int | None
) -> None:
    """They come every twentieth step; the first step that is compared is the fifth."""
    work = healthy(Synthetic(steps=206))
    work["checkpoint"] = np.zeros((206, 4))
    work["checkpoint"][start::20, 0] = 0.4
    (stall,) = stalls(case_of_seconds(work))
    assert stall.since == since
