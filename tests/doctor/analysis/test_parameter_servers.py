"""Parameter servers are recognised, and not compared with other ranks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from mgpu_probes.inprocess import layout

from mgpu_doctor.analysis.measures import measure
from mgpu_doctor.analysis.structure.job_structure import servers
from mgpu_doctor.case.model import Case, Rank
from mgpu_doctor.diagnosis import diagnose
from tests.support.hosts import ProcessLoad, sampled
from tests.support.metadata import with_metadata
from tests.support.synthetic import Fault, Synthetic, synthetic_case


def serving(job: Synthetic, *, updates: int = 2, **changes: Any) -> Case:
    """The job with rank 0 as its server, whose `updates` steps take one of the others' time."""
    case = synthetic_case(job)
    first = case.ranks[0].steps
    served = first.copy().repeat(updates)
    served["step"] = range(len(served))
    served["seq"] = served["step"] + 1
    served["micro_batches"] = 0
    served["wall_ns"] //= updates
    served["end_ns"] = 10**12 + served["wall_ns"].cumsum()
    births = [{"sends_to": list(range(1, job.ranks))}, *[{"sends_to": [0]}] * job.ranks]
    ranks = [
        with_metadata(
            replace(rank, steps=served if at == 0 else rank.steps), **{**births[at], **changes}
        )
        for at, rank in enumerate(case.ranks)
    ]
    for rank in ranks:
        rank.steps["group_seq"] = 0
    return replace(case, ranks=tuple(ranks))


def test_a_server_is_neither_culprit_nor_victim() -> None:
    case = serving(Synthetic(ranks=4, faults=[Fault(2, "forward", 30)]))
    assert servers(case.ranks) == {0}
    diagnosis = diagnose(case)
    first = diagnosis.findings[0]
    assert [culprit.rank for culprit in first.culprits] == [2]
    assert first.victims == (1, 3)
    assert diagnosis.furthest_step == 119
    assert diagnosis.ranks[0].last_step == 239
    assert "parameter server" in next(
        gap.reason for gap in diagnosis.unexamined if gap.probe == "speed of rank 0"
    )


def test_a_rank_that_only_answers_remote_calls_is_a_server() -> None:
    case = serving(Synthetic(ranks=3, faults=[Fault(2, "forward", 30)]), updates=1, sends_to=[])
    silent = case.ranks[0]
    silent.steps["flags"] |= layout.NO_OPTIMIZER  # its threads take turns
    workers = [with_metadata(rank, sends_to=[0]) for rank in case.ranks[1:]]
    assert servers([silent, *workers]) == {0}
    calling = replace(case, ranks=(silent, *workers))
    first = diagnose(calling).findings[0]
    assert [culprit.rank for culprit in first.culprits] == [2]
    assert measure(calling).moving is None  # the answer also takes the server's work
    assert measure(replace(case, ranks=tuple(workers))).moving is not None
    assert servers([with_metadata(silent, receives_from=[1]), *workers]) == frozenset()
    assert servers([silent, *(with_metadata(rank, sends_to=[]) for rank in workers)]) == frozenset()


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_healthy_one_is_left_alone(ranks: int) -> None:
    diagnosis = diagnose(serving(Synthetic(ranks=ranks)))
    assert not [finding for finding in diagnosis.findings if finding.culprits or finding.victims]
    assert diagnosis.step_seconds == pytest.approx(0.028, rel=0.2)


def test_what_a_servers_host_waits_for_costs_time_like_that_of_a_worker() -> None:
    crowd = dict.fromkeys(range(4), ProcessLoad(queued=0.3))
    (finding,) = diagnose(sampled(serving(Synthetic(ranks=4), threads=2), crowd)).findings
    assert finding.code == "cpu-oversubscribed"
    assert finding.cost.step_fraction == pytest.approx(0.3, abs=0.05)
    assert "devices" not in finding.cause


def asynchronous(slow: float) -> Case:
    """Workers that each go on at once: rank 2 takes `slow` times as long for its own work."""
    case = serving(Synthetic(ranks=4))
    for rank in case.ranks[1:]:
        own = slow if rank.rank == 2 else 1.0
        rank.steps["phases"][:, [layout.WAIT, layout.COMMUNICATION]] = 0.001
        rank.steps["wall_ns"] = (rank.steps["wall_ns"] * own).astype(int)
        rank.steps["phases"][:, layout.FORWARD] *= own
        rank.steps["end_ns"] = 10**12 + rank.steps["wall_ns"].cumsum()
    return case


def test_a_worker_that_nobody_waits_for_is_reported_by_its_own_work() -> None:
    diagnosis = diagnose(asynchronous(slow=3.0))
    (slow,) = (finding for finding in diagnosis.findings if finding.code == "straggler-worker")
    assert [culprit.rank for culprit in slow.culprits] == [2]
    assert slow.evidence[0].value == pytest.approx(0.086, rel=0.1)
    assert (slow.victims, diagnosis.ideal_step_seconds) == ((), None)
    healthy = diagnose(asynchronous(slow=1.1))
    assert "straggler-worker" not in {finding.code for finding in healthy.findings}


def server_ranks(**changes: Any) -> tuple[Rank, ...]:
    return serving(Synthetic(ranks=3, steps=40), **changes).ranks


def test_others_are_no_servers() -> None:
    silent = server_ranks(sends_to=[])
    assert servers(silent) == frozenset()
    alone = server_ranks()[:1]
    assert servers(alone) == frozenset()
    nobody_learns = server_ranks()
    for rank in nobody_learns:
        rank.steps["micro_batches"] = 0
    assert servers(nobody_learns) == frozenset()
    # Of the schedules that split the backward pass, inner stages show none at all.
    pipeline = {"stages": 4, "schedule": "ScheduleZBVZeroBubble", "micro_batches": 4}
    assert servers(server_ranks(pipeline=pipeline)) == frozenset()
    evaluates = server_ranks()
    evaluates[0].steps["flags"] |= 4
    assert servers(evaluates) == frozenset()
    assert servers(synthetic_case(Synthetic(ranks=3, steps=40)).ranks) == frozenset()
