"""Jobs of many ranks: which rank became slower than usual. Seeds differ from the benchmark's."""

from __future__ import annotations

import numpy as np
import pytest

from mgpu_doctor.analysis.steps.step_alignment import join
from mgpu_doctor.analysis.steps.work_and_wait import attribute
from mgpu_doctor.analysis.stragglers.fleet import (
    LEAST_RANKS,
    SHORTEST,
    find_in_large_job,
    learn,
    level_limit,
    rise_limit,
)
from mgpu_doctor.analysis.stragglers.persistent_stragglers import Straggler, find_stragglers
from tests.support.fleets import Fleet, Slow, case_of, simulate
from tests.support.seeds import few_or_sweep
from tests.support.synthetic import Fault, Synthetic, make_case, make_rank, records, synthetic_case

SEEDS = range(70_000, 70_002)
NOISE = 0.03


def find_named_ranks(
    fleet: Fleet, steps: int, seed: int, slow: Slow | None = None
) -> list[Straggler]:
    """Who is named at the end; asserts that it is nobody but the slow one."""
    simulated, culprit = simulate(fleet, steps, seed, slow)
    joined = join(case_of(simulated).ranks)
    stragglers = find_stragglers(joined, attribute(joined))
    assert {one.rank for one in stragglers} <= {culprit}
    return list(stragglers)


def series(steps: int, ranks: int, seed: int = 0) -> np.ndarray:
    return NOISE * np.random.default_rng(seed).standard_normal((steps, ranks))


def test_limits_grow_with_ranks_and_with_the_length_of_the_job() -> None:
    assert rise_limit(64, 10**4) < rise_limit(512, 10**4) < rise_limit(512, 10**6)
    assert level_limit(512) < level_limit(10_000)
    assert level_limit(40) > level_limit(200)  # few ranks hardly tell how much they differ
    assert rise_limit(LEAST_RANKS, 20) > 5


def test_healthy_ranks_do_not_rise() -> None:
    for seed in SEEDS:
        values = series(150, 100, seed)
        newest, whole = learn(values, resolution=1e-4).of(values)
        assert newest.max() < rise_limit(100, 150)
        assert whole.max() < level_limit(100)


def test_a_rise_of_so_many_deviations_is_measured_in_them() -> None:
    values = series(400, 100)
    values[300:, 7] += NOISE
    newest, whole = learn(values, resolution=1e-4).of(values)
    assert newest.argmax() == whole.argmax() == 7
    assert newest[7] == pytest.approx(10 / np.sqrt(1 + 100 / 300), rel=0.25)


def test_ranks_that_never_vary_have_the_resolution_for_noise() -> None:
    usual = learn(np.zeros((50, 20)), resolution=0.5)
    assert usual.scale == 0.5
    newest, whole = usual.of(np.zeros((50, 20)))
    assert np.abs(newest).max() == np.abs(whole).max() == 0


def test_correlated_steps_are_worth_less() -> None:
    correlated = series(300, 50)
    for step in range(1, 300):
        correlated[step] += 0.8 * correlated[step - 1]
    usual = learn(correlated, resolution=1e-4)
    assert usual.alike == pytest.approx(0.8, abs=0.1)
    independent = learn(series(300, 50), resolution=1e-4)
    assert usual.variance > 5 * independent.variance


@few_or_sweep(1, 6, first=70000)
@pytest.mark.parametrize("start", [0, 150])
@pytest.mark.parametrize("ranks", [LEAST_RANKS, 64, 300])
@pytest.mark.parametrize(("by", "within"), [(0.05, 45), (0.10, 30)])
def test_a_slow_rank_is_named_soon(
    ranks: int, start: int, by: float, within: int, seeds: range
) -> None:
    for seed in seeds:
        (found,) = find_named_ranks(Fleet(ranks, NOISE), start + within, seed, Slow(by, start))
        assert found.excess == pytest.approx(0.1 * by, rel=0.5)
        if start:
            assert found.since is not None
            assert abs(found.since - start) <= 6
        else:
            assert found.since is None


def test_few_steps_decide_where_the_fault_is_plain() -> None:
    for seed in SEEDS:
        (found,) = find_named_ranks(Fleet(64, NOISE), 100 + SHORTEST + 1, seed, Slow(0.2, 100))
        assert found.since is not None
        assert abs(found.since - 100) <= 2


@few_or_sweep(1, 6, first=70000)
@pytest.mark.parametrize(
    "fleet",
    [
        Fleet(50, NOISE),
        Fleet(50, 0.01),
        Fleet(LEAST_RANKS, NOISE),
        Fleet(50, NOISE, correlation=0.8),
        Fleet(50, NOISE, uneven=0.02),
        Fleet(50, NOISE, drift=0.1),
    ],
    ids=["plain", "quiet", "few", "correlated", "uneven", "drifting"],
)
@pytest.mark.slow
def test_silence_on_healthy_fleets(fleet: Fleet, seeds: range) -> None:
    for seed in seeds:
        simulated, _ = simulate(fleet, 300, seed)
        joined = join(case_of(simulated).ranks)
        attribution = attribute(joined)
        for number in range(20, 296, 25):
            stragglers = find_stragglers(joined.between(0, number), attribution.between(0, number))
            assert stragglers == (), (seed, number)


@few_or_sweep(1, 6, first=70000)
def test_a_rank_that_is_noisier_than_the_others_is_not_slow(seeds: range) -> None:
    for seed in seeds:
        steps = records(Synthetic(ranks=40, steps=200, seed=seed))
        wide = 1 + 0.15 * np.random.default_rng(seed).standard_normal(200)
        extra = steps[3]["phases"][:, 3] * (wide - 1)
        steps[3]["phases"][:, 3] += extra
        steps[3]["phases"][:, 4] -= np.minimum(extra, steps[3]["phases"][:, 4])
        joined = join([make_rank(number, records) for number, records in enumerate(steps)])
        attribution = attribute(joined)
        for seen in range(20, 195, 5):
            assert find_stragglers(joined.between(0, seen), attribution.between(0, seen)) == ()


def test_a_fault_that_is_over_is_not_reported() -> None:
    for seed in SEEDS:
        assert find_named_ranks(Fleet(64, NOISE), 300, seed, Slow(0.1, 100, 270)) == []
        assert find_named_ranks(Fleet(64, NOISE), 300, seed, Slow(0.3, 100, 290)) == []


def test_more_than_half_of_the_ranks_are_nobody() -> None:
    faults = [Fault(rank, "forward", 20) for rank in range(11)]
    joined = join(synthetic_case(Synthetic(ranks=20, faults=faults)).ranks)
    assert find_stragglers(joined, attribute(joined)) == ()


def test_a_whole_node_of_slow_ranks_is_named_from_the_start() -> None:
    faults = [Fault(rank, "forward", 3) for rank in range(8)]
    joined = join(synthetic_case(Synthetic(ranks=64, faults=faults)).ranks)
    stragglers = find_stragglers(joined, attribute(joined))
    assert {one.rank for one in stragglers} == set(range(8))
    assert {one.since for one in stragglers} == {None}


def test_several_slow_ones_find_in_large_job() -> None:
    faults = [Fault(rank, "forward", 10 + rank, start=60) for rank in (3, 9, 14)]
    joined = join(synthetic_case(Synthetic(ranks=40, faults=faults)).ranks)
    stragglers = find_stragglers(joined, attribute(joined))
    assert [one.rank for one in stragglers] == [14, 9, 3]
    assert stragglers[-1].saved > 2 * stragglers[0].saved  # mending the worst alone helps little


def test_a_phase_tells_where_the_sum_is_too_noisy() -> None:
    base = {"input": 0.001, "backward": 0.03}
    for seed in SEEDS:
        steps = records(Synthetic(ranks=40, steps=60, seed=seed, base=base, noise=0.002))
        shaken = 0.006 * np.abs(np.random.default_rng(seed).standard_normal((60, 40)))
        for rank, rank_records in enumerate(steps):
            rank_records["phases"][:, 3] += shaken[:, rank]
            rank_records["phases"][:, 4] += (shaken.max(axis=1) - shaken[:, rank]).astype(
                np.float32
            )
            rank_records["wall_ns"] += (shaken.max(axis=1) * 1e9).astype(np.int64)
        late = steps[5]
        late["phases"][:, 0] += 0.0015
        late["phases"][:, 4] -= np.minimum(0.0015, late["phases"][:, 4])
        joined = join(make_case([make_rank(n, records) for n, records in enumerate(steps)]).ranks)
        attribution = attribute(joined)
        (found,) = find_in_large_job(joined, attribution, 0.02 * joined.step_seconds).items()
        assert found[0] == 5
        assert found[1][0].effect == pytest.approx(0.0015, rel=0.2)


def test_steps_and_phases_that_were_not_measured() -> None:
    steps = records(Synthetic(ranks=20, faults=[Fault(2, "backward", 8, start=50)]))
    for rank_records in steps:
        rank_records["phases"][:, 1] = np.nan
    steps[3]["phases"][20:25, 4] = np.nan
    steps[4]["phases"][:, 0] = np.nan
    joined = join([make_rank(number, records) for number, records in enumerate(steps)])
    (straggler,) = find_stragglers(joined, attribute(joined))
    assert straggler.rank == 2
    assert straggler.since is not None
    assert abs(straggler.since - 50) <= 1
    assert straggler.by_phase["transfer"] is None
