"""Threads that want to compute on a host, compared with its cores."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mgpu_doctor.analysis.machines.cpu_contention import surroundings
from mgpu_doctor.analysis.machines.oversubscription import CpuDemand, measure_cpu_demand
from mgpu_doctor.analysis.machines.rank_samples import RankSamples
from mgpu_doctor.case.model import Case
from mgpu_doctor.case.process_metadata import UNKNOWN
from tests.support.hosts import ProcessLoad, on_host, sampled
from tests.support.metadata import with_metadata
from tests.support.synthetic import Synthetic, synthetic_case


def job(ranks: int = 4, **birth: Any) -> Case:
    return on_host(synthetic_case(Synthetic(ranks=ranks, birth={"threads": 2, **birth})))


def crowd(case: Case) -> CpuDemand:
    (found,) = measure_cpu_demand(case, surroundings(RankSamples(case)))
    return found


def test_threads_of_all_ranks_against_their_cores_together() -> None:
    demand = crowd(
        sampled(job(), {0: ProcessLoad(cores=(0,)), 1: ProcessLoad(cores=(1, 2), queued=0.2)})
    )
    assert (demand.threads, demand.most_threads, demand.cores) == (8, 2, 3)
    assert demand.ranks == (0, 1, 2, 3)
    assert demand.full
    assert demand.alone


def test_enough_cores() -> None:
    cores = tuple(range(8))
    demand = crowd(sampled(job(), dict.fromkeys(range(4), ProcessLoad(cores=cores))))
    assert not demand.full


def test_a_quota_counts_where_it_leaves_less() -> None:
    quota = ProcessLoad(cores=tuple(range(8)), throttled=0.0, quota=1.0)
    shared = sampled(job(), dict.fromkeys(range(4), quota))
    assert crowd(shared).cores == 4
    one_free = sampled(
        job(), {**dict.fromkeys(range(3), quota), 3: ProcessLoad(cores=(0, 1, 2, 3))}
    )
    assert crowd(one_free).cores == 8


def test_workers_count_by_what_they_want() -> None:
    busy, asleep = ProcessLoad(running=0.6, queued=0.3), ProcessLoad(running=0.02)
    loads = {"loaders": [{"workers": 2}]}
    case = job(2, threads=1, **loads)
    assert crowd(sampled(case, {0: ProcessLoad(children=(busy, busy))})).workers == pytest.approx(
        1.8
    )
    assert crowd(sampled(case, {0: ProcessLoad(children=(busy, busy))})).full
    assert not crowd(sampled(case, {0: ProcessLoad(children=(asleep, asleep))})).full
    without_loader = job(2, threads=1)
    assert crowd(sampled(without_loader, {0: ProcessLoad(children=(busy, busy))})).workers == 0


def test_without_samples_the_births_tell() -> None:
    demand = crowd(job(affinity=2))
    assert (demand.threads, demand.cores, demand.queueing, demand.outside) == (8, 2, None, None)


def test_unequal_affinities_without_samples_do_not_tell() -> None:
    case = job(affinity=2)
    other = with_metadata(case.ranks[0], affinity=1)
    assert crowd(replace(case, ranks=(other, *case.ranks[1:]))).cores is None


def test_a_host_with_a_rank_of_unknown_threads_is_left_out() -> None:
    case = job()
    unknown = replace(case.ranks[0], metadata=UNKNOWN, host="other")
    found = measure_cpu_demand(replace(case, ranks=(unknown, *case.ranks[1:])), {})
    assert [one.host for one in found] == ["node"]
