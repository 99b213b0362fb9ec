"""CPU contention of each rank from counters: rates, since when, and where it was not measured."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from mgpu_doctor.analysis.machines import cpu_contention
from mgpu_doctor.analysis.machines.cpu_contention import UNSEEN, Surroundings
from mgpu_doctor.analysis.machines.rank_samples import RankSamples
from mgpu_doctor.case.host_samples import Group, HostSample, Task
from mgpu_doctor.case.model import Case
from tests.support.hosts import EVERY, ProcessLoad, on_host, sampled, with_worker_threads
from tests.support.metadata import with_metadata
from tests.support.synthetic import Synthetic, synthetic_case

JOB = Synthetic(ranks=2)


def surroundings(case: Case) -> dict[int, Surroundings]:
    return cpu_contention.surroundings(RankSamples(case))


def surroundings_of(samples: RankSamples, number: int, since: float) -> Surroundings:
    return cpu_contention.surroundings_of(samples, number, since) or UNSEEN


def estimate_waits(case: Case) -> dict[int, float]:
    return cpu_contention.estimate_waits(RankSamples(case))


def case_of(*doing: ProcessLoad, **facts: float) -> Case:
    return sampled(on_host(synthetic_case(JOB)), dict(enumerate(doing)), **facts)


def test_counters_become_rates() -> None:
    slow = ProcessLoad(running=1.2, ran=0.5, queued=0.3, throttled=0.1, quota=2.0, cores=(1,))
    rates = surroundings(case_of(ProcessLoad(), slow))
    one = rates[1]
    assert one.running == pytest.approx(1.2)
    assert one.main_running == pytest.approx(0.5)
    assert one.queueing == pytest.approx(0.3)
    assert one.throttled == pytest.approx(0.1)
    assert (one.quota, one.group, one.cores) == (2.0, "/group-1", frozenset({1}))
    assert one.computes_here
    assert rates[0].throttled == 0.0
    assert rates[0].quota is None


def test_no_samples_no_surroundings() -> None:
    assert surroundings(synthetic_case(JOB)) == {}


def test_one_sample_says_nothing() -> None:
    case = case_of()
    assert surroundings(replace(case, host_samples=case.host_samples[5:6])) == {}


def test_what_the_kernel_does_not_count_is_unknown() -> None:
    rates = surroundings(case_of(ProcessLoad(ran=None, queued=None, cores=None)))
    assert rates[0].queueing is None
    assert rates[0].main_running is None
    assert rates[0].cores is None
    assert rates[1].queueing == 0.0


def test_the_main_thread_tells_nothing_where_another_one_trains() -> None:
    case = case_of(ProcessLoad(ran=0.5, queued=0.3), ProcessLoad(ran=0.5, queued=0.3))
    rates = surroundings(
        replace(case, ranks=(with_metadata(case.ranks[0], main_thread_trains=False), case.ranks[1]))
    )
    assert (rates[0].main_running, rates[0].queueing) == (None, None)
    assert rates[1].queueing == pytest.approx(0.3)


def test_of_a_pool_all_threads_count_as_the_main_one_only_waits() -> None:
    case = case_of(ProcessLoad(queued=0.1, others_queued=0.8))
    alone, together = surroundings(case)[0], surroundings(with_worker_threads(case))[0]
    assert not alone.pooled
    assert alone.without_core == pytest.approx(0.1)
    start = case.host_samples[0].at
    for one in (together, surroundings_of(RankSamples(with_worker_threads(case)), 0, start)):
        assert one.pooled
        assert one.without_core == pytest.approx(0.9)


def test_groups_that_cannot_be_seen_are_not_without_limit() -> None:
    case = case_of()
    blind = [
        structs.replace(
            sample, tasks={pid: structs.replace(t, limits=None) for pid, t in sample.tasks.items()}
        )
        for sample in case.host_samples
    ]
    assert surroundings(replace(case, host_samples=tuple(blind)))[0].throttled is None


def test_a_later_moment_sees_the_later_rate() -> None:
    case = case_of(ProcessLoad(), ProcessLoad(queued=0.8), since=2.0)
    whole, samples = surroundings(case)[1], RankSamples(case)
    late = surroundings_of(samples, 1, case.host_samples[0].at + 2.0)
    assert late.queueing == pytest.approx(0.8)
    assert whole.queueing is not None
    assert whole.queueing < 0.5
    newest = surroundings_of(samples, 1, case.host_samples[-1].at - EVERY / 2)
    assert newest.queueing == pytest.approx(0.8)
    assert surroundings_of(samples, 1, case.host_samples[-1].at + 9).queueing is None


def test_samples_before_and_after_the_steps_do_not_count() -> None:
    case = case_of(ProcessLoad(queued=0.2))
    first, last = case.host_samples[0], case.host_samples[-1]
    pid = case.ranks[0].pid
    assert pid is not None
    start = structs.replace(
        first, at=first.at - 60, tasks={pid: structs.replace(first.tasks[pid], queued=0.0)}
    )
    end = structs.replace(
        last, at=last.at + 60, tasks={pid: structs.replace(last.tasks[pid], queued=999.0)}
    )
    around = replace(case, host_samples=(start, *case.host_samples, end))
    assert surroundings(around)[0].queueing == pytest.approx(0.2)


def test_a_counter_that_falls_is_another_one() -> None:
    """Threads ended, or the pid went to somebody else."""
    case = case_of(ProcessLoad(queued=0.4))
    pid = case.ranks[0].pid
    assert pid is not None

    def fallen(sample: HostSample) -> HostSample:
        task = sample.tasks[pid]
        return structs.replace(
            sample, tasks={pid: structs.replace(task, queued=(task.queued or 0) - 4)}
        )

    halves = len(case.host_samples) // 2
    samples = case.host_samples[:halves] + tuple(map(fallen, case.host_samples[halves:]))
    assert surroundings(replace(case, host_samples=samples))[0].queueing == pytest.approx(0.4)


def test_another_group_is_another_counter() -> None:
    case = case_of(ProcessLoad(throttled=0.1))
    halves = len(case.host_samples) // 2

    def moved(sample: HostSample) -> HostSample:
        tasks = {pid: structs.replace(task, limits=("/new",)) for pid, task in sample.tasks.items()}
        grown = sample.groups["/group-0"].throttled or 0
        return structs.replace(sample, tasks=tasks, groups={"/new": Group(3.0, 500 + grown)})

    samples = case.host_samples[:halves] + tuple(map(moved, case.host_samples[halves:]))
    seen = surroundings(replace(case, host_samples=samples))[0]
    assert seen.throttled == pytest.approx(0.1)
    assert seen.quota == 3.0


def test_children_are_seen_together() -> None:
    workers = (
        ProcessLoad(running=0.9, queued=0.1),
        ProcessLoad(running=0.5, queued=0.3, state="D"),
    )
    children = surroundings(case_of(ProcessLoad(children=workers)))[0].children
    assert children is not None
    assert children.count == 2
    assert children.running == pytest.approx(0.7)
    assert children.queueing == pytest.approx(0.2)
    assert children.on_disk == 0.5
    assert surroundings(case_of())[1].children is None


def test_children_that_live_shortly_count_from_their_birth() -> None:
    case = case_of()
    at = len(case.host_samples) // 2
    sample = case.host_samples[at]
    pid = case.ranks[0].pid
    child = Task(parent=pid, state="S", age=EVERY / 2, queued=EVERY / 8)
    seen = structs.replace(
        sample,
        tasks={**sample.tasks, 99: child},
        processes={**sample.processes, 99: (EVERY / 4, 1)},
    )
    samples = (*case.host_samples[:at], seen, *case.host_samples[at + 1 :])
    children = surroundings(replace(case, host_samples=samples))[0].children
    assert children is not None
    assert children.running == pytest.approx(0.5)
    assert children.queueing == pytest.approx(0.25)


def test_grandchildren_are_children_and_ranks_are_none() -> None:
    case = case_of(ProcessLoad(children=(ProcessLoad(),)))
    pid, other = (rank.pid for rank in case.ranks)
    assert pid is not None
    assert other is not None

    def deeper(sample: HostSample) -> HostSample:
        grandchild = structs.replace(sample.tasks[10 * pid], parent=10 * pid)
        below = structs.replace(sample.tasks[other], parent=pid)
        return structs.replace(sample, tasks={**sample.tasks, 99: grandchild, other: below})

    seen = surroundings(replace(case, host_samples=tuple(map(deeper, case.host_samples))))
    assert seen[0].children is not None
    assert seen[0].children.count == 2
    assert seen[1].children is None


def test_other_work_of_the_host() -> None:
    rates = surroundings(case_of(outside=1.5))
    assert rates[0].outside == pytest.approx(1.5)
    assert surroundings(case_of())[0].outside == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize(("age", "outside"), [(0.4, 0.0), (None, 0.5)])
def test_workers_that_live_for_an_epoch_are_no_other_work(
    age: float | None, outside: float
) -> None:
    """Each is in one sample only. Of unknown age, it may be older than the sample before."""
    case = case_of()
    samples = []
    for number, sample in enumerate(case.host_samples):
        assert sample.busy is not None
        pid, used = 9000 + number, 0.5 * EVERY
        worker = Task(parent=case.ranks[0].pid, age=None if age is None else age * EVERY)
        samples.append(
            structs.replace(
                sample,
                busy=sample.busy + number * used,
                processes={**sample.processes, pid: (used, 0)},
                tasks={**sample.tasks, pid: worker},
            )
        )
    rates = surroundings(replace(case, host_samples=tuple(samples)))
    assert rates[0].outside == pytest.approx(outside, abs=1e-6)


def test_ranks_of_another_host_are_not_looked_up_by_their_pid() -> None:
    case = case_of()
    moved = replace(case.ranks[1], host="elsewhere")
    assert set(surroundings(replace(case, ranks=(case.ranks[0], moved)))) == {0}


def test_how_often_a_disk_was_waited_for() -> None:
    rates = surroundings(case_of(ProcessLoad(state="D")))
    assert (rates[0].on_disk, rates[1].on_disk) == (1.0, 0.0)


@pytest.mark.parametrize(
    ("outside", "cores", "share"),
    [(0.3, 2, 0.3), (1.79, 4, (3.19 / 4) ** 4), (1.81, 4, 1.0), (0.2, 4, (1.6 / 4) ** 4)],
)
def test_how_long_ranks_may_have_waited_for_cores_that_others_used(
    outside: float, cores: int, share: float
) -> None:
    """The two ranks use 1.4 cores, and leave others no more than the rest."""
    case = case_of(outside=outside)
    samples = [structs.replace(sample, cores=cores, tasks={}) for sample in case.host_samples]
    possible = estimate_waits(replace(case, host_samples=(samples[0], samples[-1])))
    assert possible == pytest.approx({0: share, 1: share})
    shortly_before = [structs.replace(sample, at=sample.at - 1) for sample in samples[:2]]
    possible = estimate_waits(replace(case, host_samples=tuple(shortly_before)))
    assert possible == pytest.approx({0: share, 1: share})
    idle = structs.replace(samples[0], at=samples[0].at - 1)  # others were idle until then
    possible = estimate_waits(replace(case, host_samples=(idle, samples[0], samples[-1])))
    assert possible == pytest.approx({0: share, 1: share})
    long_before = [structs.replace(sample, at=sample.at - 1e3) for sample in samples]
    assert estimate_waits(replace(case, host_samples=tuple(long_before))) == {}


@pytest.mark.parametrize(
    ("load", "shares"), [(4.0, {0: 1.0, 1: 1.0}), (3.9, {0: 0.0, 1: 0.0}), (None, {})], ids=str
)
def test_the_load_average_counts_if_there_is_only_one_sample(
    load: float | None, shares: dict[int, float]
) -> None:
    case = case_of()
    one = structs.replace(case.host_samples[0], cores=2, load1=load, tasks={})
    assert estimate_waits(replace(case, host_samples=(one,))) == shares
    assert estimate_waits(replace(case, host_samples=())) == {}
