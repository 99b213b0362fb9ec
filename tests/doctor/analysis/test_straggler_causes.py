"""What explains a straggler's excess: each cause planted, absent, and unknown."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mgpu_doctor.analysis.measures import measure
from mgpu_doctor.analysis.stragglers.straggler_causes import HOST, Cause
from mgpu_doctor.case.model import Case
from tests.support.hosts import ProcessLoad, computing, on_host, sampled, with_worker_threads
from tests.support.synthetic import Fault, Synthetic, synthetic_case

EXCESS = 0.020
STEP = 0.049


def slow(phase: str = "forward", ranks: int = 4, start: int = 0, steps: int = 120) -> Case:
    fault = Fault(1, phase, milliseconds=1000 * EXCESS, start=start)
    return on_host(synthetic_case(Synthetic(ranks=ranks, steps=steps, faults=[fault])))


def causes(case: Case) -> dict[str, Cause]:
    found = measure(case).causes
    assert list(found) == [1]
    return {one.name: one for one in found[1]}


def share(case: Case, name: str) -> float:
    one = causes(case)[name].share
    assert one is not None
    return one


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_contended_core(ranks: int) -> None:
    case = sampled(slow(ranks=ranks), {1: ProcessLoad(queued=EXCESS / STEP)})
    assert share(case, "host-contended") == pytest.approx(1, abs=0.1)
    assert share(case, "host-throttled") == 0


def test_what_all_ranks_wait_for_explains_nothing() -> None:
    case = sampled(slow(), dict.fromkeys(range(4), ProcessLoad(queued=0.4)))
    assert share(case, "host-contended") == 0


def test_whoever_computes_more_waits_more_and_is_the_cause() -> None:
    """Twice the work on crowded cores: twice the wait for them."""
    crowd = dict.fromkeys(range(4), ProcessLoad(queued=0.25))
    case = sampled(computing(slow(), {0: 0.014, 1: 0.024, 2: 0.014, 3: 0.014}), crowd)
    more = sampled(case, {**crowd, 1: ProcessLoad(queued=0.45)})
    assert share(more, "host-contended") == pytest.approx(0, abs=0.15)
    assert share(more, "idle") == pytest.approx(0, abs=0.15)


def test_a_pool_whose_threads_stand_ready_is_held_up_no_longer_than_it_takes_longer() -> None:
    case = sampled(slow(), {1: ProcessLoad(others_queued=1.6)})
    assert share(case, "host-contended") == 0
    assert causes(with_worker_threads(case))["host-contended"].seconds == pytest.approx(
        EXCESS, abs=0.002
    )


@pytest.mark.parametrize(
    "doing",
    [
        {1: ProcessLoad(running=0.7 + EXCESS / STEP, others_queued=0.8)},
        dict.fromkeys(range(4), ProcessLoad(others_queued=0.8)),
    ],
    ids=["computes more", "waits as all do"],
)
def test_a_pool_that_others_do_not_hold_up(doing: dict[int, ProcessLoad]) -> None:
    case = sampled(with_worker_threads(slow()), doing)
    assert share(case, "host-contended") == pytest.approx(0, abs=0.05)


def test_memory_that_comes_and_goes() -> None:
    case = sampled(slow("optimizer"), {1: ProcessLoad(faults=50_000, kernel=0.05 + EXCESS / STEP)})
    assert share(case, "host-paging") == pytest.approx(1, abs=0.1)


def test_time_in_the_kernel_for_other_things_is_no_paging() -> None:
    case = sampled(slow("optimizer"), {1: ProcessLoad(faults=500, kernel=0.05 + EXCESS / STEP)})
    assert share(case, "host-paging") == 0


def test_a_page_fault_takes_so_long_at_most() -> None:
    case = sampled(slow("optimizer"), {1: ProcessLoad(faults=2_000, kernel=0.9)})
    assert share(case, "host-paging") == pytest.approx(2_000 * 10e-6 * STEP / EXCESS, rel=0.1)


def test_a_quota_is_distinguished_from_contention() -> None:
    """The time without quota is part of that in which the main thread stands ready."""
    held_up = ProcessLoad(queued=EXCESS / STEP, throttled=0.9, quota=0.5)
    case = sampled(slow(), {1: held_up})
    assert share(case, "host-throttled") == pytest.approx(1, abs=0.1)
    assert share(case, "host-contended") == 0


def test_a_little_of_both() -> None:
    both = ProcessLoad(queued=EXCESS / STEP, throttled=0.1, quota=0.5)
    case = sampled(slow(), {1: both})
    assert share(case, "host-throttled") == pytest.approx(0.1 * STEP / EXCESS, abs=0.05)
    assert share(case, "host-contended") == pytest.approx(1 - 0.1 * STEP / EXCESS, abs=0.1)


def test_a_quota_without_a_scheduler_that_counts() -> None:
    blind = dict.fromkeys(range(4), ProcessLoad(queued=None))
    case = sampled(slow(), {**blind, 1: ProcessLoad(queued=None, throttled=0.4, quota=0.5)})
    assert share(case, "host-throttled") == pytest.approx(0.4 * STEP / EXCESS, abs=0.1)
    assert causes(case)["host-contended"].seconds is None


def test_fewer_cores() -> None:
    """Equal CPU time a step, on one core instead of two."""
    usual = ProcessLoad(running=1.0, cores=(0, 1))
    doing = {**dict.fromkeys(range(4), usual), 1: ProcessLoad(running=1.0, cores=(0,))}
    own, own_of_others = STEP - 0.002, STEP - 0.002 - EXCESS
    case = sampled(slow(), doing)
    assert share(case, "host-cores") == pytest.approx((own - own_of_others) / EXCESS, abs=0.1)
    assert causes(case)["host-cores"].seconds == pytest.approx(EXCESS, abs=0.002)


def test_fewer_cores_that_it_does_not_fill_explain_nothing() -> None:
    usual = ProcessLoad(running=1.0, cores=(0, 1))
    doing = {**dict.fromkeys(range(4), usual), 1: ProcessLoad(running=0.5, cores=(0,))}
    assert share(sampled(slow(), doing), "host-cores") == 0


def test_equal_cores_explain_nothing() -> None:
    assert share(sampled(slow(), {1: ProcessLoad(running=0.4)}), "host-cores") == 0


def test_a_main_thread_that_sleeps() -> None:
    case = sampled(computing(slow(), {1: EXCESS}), {})
    assert share(case, "idle") == pytest.approx(1, abs=0.1)
    assert share(sampled(computing(slow()), {}), "idle") == pytest.approx(0, abs=0.1)


def test_a_main_thread_that_stands_ready_does_not_sleep() -> None:
    case = sampled(computing(slow(), {1: EXCESS}), {1: ProcessLoad(queued=EXCESS / STEP)})
    assert share(case, "idle") == pytest.approx(0, abs=0.1)


def test_the_host_of_a_device_is_idle_while_that_computes() -> None:
    case = sampled(computing(synthetic_case(Synthetic(faults=[Fault(1, "forward", 20)]))), {})
    assert causes(case)["idle"].seconds is None
    assert causes(case)["host-cores"].seconds is None


@pytest.mark.parametrize("name", ["samples", "tokens"])
def test_more_data_explains_in_proportion(name: str) -> None:
    case = slow("backward")
    ranks = []
    for rank in case.ranks:
        steps = rank.steps.copy()
        steps[name] = 48 if rank.rank == 1 else 32
        ranks.append(replace(rank, steps=steps))
    work = 0.0227 + EXCESS
    expected = work * (1 - 32 / 48) / EXCESS
    assert share(replace(case, ranks=tuple(ranks)), "data") == pytest.approx(expected, abs=0.1)
    assert causes(case)["data"].seconds is None


@pytest.mark.parametrize("pauses", [EXCESS, np.nan])
def test_garbage_collection(pauses: float) -> None:
    case = slow("other")
    ranks = []
    for rank in case.ranks:
        steps = rank.steps.copy()
        steps["gc_s"] = pauses if rank.rank == 1 else 0.0
        ranks.append(replace(rank, steps=steps))
    found = causes(replace(case, ranks=tuple(ranks)))["gc"]
    if np.isnan(pauses):
        assert found.seconds is None
    else:
        assert found.share == pytest.approx(1, abs=0.1)


def test_a_cause_counts_from_when_the_straggler_began() -> None:
    case = slow(start=100, steps=240)
    begin = float(case.ranks[0].steps["end_ns"][100] - case.ranks[0].steps["end_ns"][0]) * 1e-9
    late = sampled(case, {1: ProcessLoad(queued=EXCESS / STEP)}, since=begin)
    assert measure(late).surroundings[1].queueing == pytest.approx(0.27, abs=0.04)
    assert share(late, "host-contended") == pytest.approx(1, abs=0.1)


def test_nothing_sampled_is_nothing_known() -> None:
    found = causes(slow())
    unknown = {name for name, one in found.items() if one.seconds is None}
    assert unknown == {"data", *HOST, "idle"}


def test_the_most_telling_comes_first_and_the_unknown_last() -> None:
    case = sampled(slow(), {1: ProcessLoad(queued=EXCESS / STEP)})
    order = [one.name for one in measure(case).causes[1]]
    assert order[0] == "host-contended"
    assert set(order[-2:]) == {"data", "idle"}


@pytest.mark.parametrize(("faults", "paging"), [(1020, True), (1000, False)])
def test_a_thousand_page_faults_a_second_more_than_the_peers_are_paging(
    faults: int, paging: bool
) -> None:
    """Peers have 10."""
    case = sampled(slow("optimizer"), {1: ProcessLoad(faults=faults, kernel=0.9)})
    assert (share(case, "host-paging") > 0) is paging


@pytest.mark.parametrize(("known", "reported"), [(0.55, True), (0.45, False)])
def test_loads_must_be_known_in_half_of_the_steps(known: float, reported: bool) -> None:
    case = slow()
    for rank in case.ranks:
        count = int(known * len(rank.steps))
        rank.steps["samples"][-count:] = 64 if rank.rank == 1 else 32
    assert (causes(case)["data"].share is not None) is reported
