"""Exposed communication, and whether the cores had time for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mgpu_doctor.analysis.cost.communication_cost import CoreContention, measure_core_contention
from mgpu_doctor.analysis.machines.cpu_contention import Surroundings
from mgpu_doctor.analysis.measures import measure
from mgpu_doctor.case.model import Rank
from tests.support.synthetic import Fault, Synthetic, make_rank, records, synthetic_case

ON_TWO_CORES: dict[str, Any] = {"clock": "cpu", "affinity": 2}


def two_on_a_host(count: int = 2, **birth: Any) -> tuple[Rank, ...]:
    steps = records(Synthetic(ranks=1))[0]
    return tuple(make_rank(number, steps, birth=birth or ON_TWO_CORES) for number in range(count))


def test_communication_is_what_no_rank_waits_for() -> None:
    job = Synthetic(communication=0.010, faults=[Fault(2, "forward", milliseconds=30)])
    found = measure(synthetic_case(job)).moving
    assert found is not None
    assert found.seconds == pytest.approx(0.010, rel=0.05)
    assert found.share == pytest.approx(0.010 / 0.069, rel=0.1)


def test_a_rare_stall_of_the_network_is_not_what_moving_usually_takes() -> None:
    case = synthetic_case(Synthetic(communication=0.010))
    ranks = []
    for rank in case.ranks:
        steps = rank.steps.copy()
        steps["phases"][60:63, 4] += 2.0
        steps["wall_ns"][60:63] += 2_000_000_000
        ranks.append(replace(rank, steps=steps))
    found = measure(replace(case, ranks=tuple(ranks))).moving
    assert found is not None
    assert found.seconds == pytest.approx(0.010, rel=0.05)


def test_nothing_is_reported_where_a_device_runs_behind_the_host_or_steps_are_few() -> None:
    behind = Synthetic(birth={"clock": "host"}, device="cuda:0")
    assert measure(synthetic_case(behind)).moving is None
    assert measure(synthetic_case(Synthetic(steps=20))).moving is None


@pytest.mark.parametrize(("queueing", "crowded"), [(0.05, False), (0.20, True)])
def test_threads_that_wait_for_a_core_crowd_communication(queueing: float, crowded: bool) -> None:
    one = Surroundings(queueing=0.3, all_queueing=0.3 + queueing, outside=1.5)
    contention = measure_core_contention(two_on_a_host(), {0: one, 1: one}, share=0.3)
    assert contention is not None
    assert contention.queueing == pytest.approx(queueing)
    assert (contention.crowded, contention.ranks, contention.cores, contention.outside) == (
        crowded,
        2,
        2,
        1.5,
    )


def test_cpu_time_of_other_threads_is_the_movers_where_none_of_them_computes() -> None:
    one = Surroundings(running=0.6, main_running=0.4, queueing=0.1, all_queueing=0.5)
    alone = measure_core_contention(
        two_on_a_host(**ON_TWO_CORES, threads=1), {0: one, 1: one}, share=0.3
    )
    assert alone is not None
    assert alone.moving == pytest.approx(0.2)
    pooled = measure_core_contention(
        two_on_a_host(**ON_TWO_CORES, threads=4), {0: one, 1: one}, share=0.3
    )
    assert pooled is not None
    assert pooled.moving is None


def test_threads_of_a_pool_compute_too_so_nothing_is_mentioned_movers() -> None:
    one = Surroundings(running=0.6, main_running=0.05, queueing=0.05, all_queueing=0.9, pooled=True)
    contention = measure_core_contention(
        two_on_a_host(**ON_TWO_CORES, threads=1), {0: one, 1: one}, share=0.3
    )
    assert contention is not None
    assert (contention.crowded, contention.queueing, contention.moving) == (True, None, None)


@pytest.mark.parametrize(("cores", "crowded"), [(2, True), (8, False)])
def test_moving_data_crowds_ranks_that_fill_the_cores(cores: int, crowded: bool) -> None:
    """Of 200 ms that communication takes a second, its threads ran 80 and stood ready for 40."""
    one = Surroundings(running=0.6, main_running=0.52, queueing=0.1, all_queueing=0.14)
    birth = {**ON_TWO_CORES, "affinity": cores, "threads": 1}
    contention = measure_core_contention(two_on_a_host(**birth), {0: one, 1: one}, share=0.2)
    assert contention is not None
    assert contention.short is crowded


def test_a_slow_link_leaves_full_cores_idle() -> None:
    one = Surroundings(running=0.32, main_running=0.3, queueing=0.1, all_queueing=0.13)
    contention = measure_core_contention(
        two_on_a_host(**ON_TWO_CORES, threads=1), {0: one, 1: one}, share=0.6
    )
    assert contention is not None
    assert not contention.short


@pytest.mark.parametrize(("cores", "crowded"), [(2, True), (8, False), (None, True)])
def test_without_counters_ranks_and_cores_are_counted(cores: int | None, crowded: bool) -> None:
    contention = measure_core_contention(two_on_a_host(clock="cpu", affinity=cores), {}, share=0.3)
    assert contention == CoreContention(crowded, 2, cores)


def test_ranks_on_two_hosts_do_not_share_cores() -> None:
    ranks = two_on_a_host(count=4)
    apart = tuple(replace(rank, host=f"node{number // 2}") for number, rank in enumerate(ranks))
    contention = measure_core_contention(apart, {}, share=0.3)
    assert contention is not None
    assert contention.ranks == 2


def test_collectives_of_devices_are_not_the_cores_work() -> None:
    assert measure_core_contention(two_on_a_host(clock="device", affinity=2), {}, share=0.3) is None
    assert measure_core_contention((), {}, share=0.3) is None


def test_unmeasured_steps_are_left_out() -> None:
    case = synthetic_case(Synthetic(communication=0.010))
    first = case.ranks[0].steps.copy()
    first["phases"][30:40, 4] = np.nan
    ranks = (replace(case.ranks[0], steps=first), *case.ranks[1:])
    found = measure(replace(case, ranks=ranks)).moving
    assert found is not None
    assert found.seconds == pytest.approx(0.010, rel=0.05)
