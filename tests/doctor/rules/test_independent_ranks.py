"""Processes that train at the same time without a process group: each is examined by itself.

Most tests also examine the same facts as those of a process group, where they mean something else.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mgpu_doctor.case.model import Case, JobEnd, Outcome, Rank
from mgpu_doctor.case.outcomes import outcome_of
from mgpu_doctor.diagnosis import diagnose
from mgpu_doctor.findings import Diagnosis, Finding
from mgpu_doctor.live.step_heatmap import make_heatmap
from mgpu_doctor.recording.box import STEP_DTYPE
from mgpu_doctor.report.verdict import job_line
from tests.support import job_snapshots
from tests.support.failure_cases import dead, error, find, rank, terminated, waiting
from tests.support.job_snapshots import LOCKED, LOOP, ProcessState, SnapshotSeries, collective
from tests.support.per_step_jobs import case_of_seconds, healthy
from tests.support.synthetic import (
    BASE,
    Fault,
    Synthetic,
    make_case,
    make_rank,
    records,
    synthetic_case,
)


def apart(case: Case) -> Case:
    """The same ranks without a process group."""
    ranks = tuple(replace(rank, world_size=1) for rank in case.ranks)
    return replace(case, ranks=ranks, job=replace(case.job, world_size=None, strategy=None))


def codes(diagnosis: Diagnosis) -> list[str]:
    return [finding.code for finding in diagnosis.findings]


def test_a_slow_process_slows_no_other_one() -> None:
    case = synthetic_case(Synthetic(ranks=2, faults=[Fault(1, "forward", milliseconds=80)]))
    assert codes(diagnose(case)) == ["straggler-compute"]
    diagnosis = diagnose(apart(case))
    assert diagnosis.findings == ()
    assert [summary.last_step for summary in diagnosis.ranks] == [119, 119]
    assert diagnosis.coverage is not None
    assert "2 independent ranks" in job_line(diagnosis)


def test_stalls_of_one_process_are_no_stragglers() -> None:
    fault = Fault(1, "backward", milliseconds=300, start=10, every=20)
    case = synthetic_case(Synthetic(ranks=3, steps=160, faults=[fault]))
    assert codes(diagnose(case)) == ["straggler-transient"]
    assert diagnose(apart(case)).findings == ()


LOADER = {"sampler": "RandomSampler", "shuffles": True, "dataset_length": 1000, "batch_size": 16}


@pytest.mark.parametrize(
    ("weights", "batches", "code"),
    [("ab", "ab", "replicas-diverged"), ("aa", "aa", "data-duplicated")],
)
def test_neither_their_weights_nor_their_batches_are_compared(
    weights: str, batches: str, code: str
) -> None:
    ranks = []
    for number, steps in enumerate(records(Synthetic(ranks=2, steps=60))):
        birth = {
            "strategy": "ddp",
            "loaders": [LOADER],
            "batches": [[0, 0, index, f"{batches[number]}{index}"] for index in range(8)],
            "weights": [[at, 3 * at, at, f"s.{weights[number]}{at}.{number}"] for at in (20, 40)],
        }
        ranks.append(make_rank(number, steps, birth=birth))
    assert code in codes(diagnose(make_case(ranks)))
    assert diagnose(apart(make_case(ranks))).findings == ()


def test_collections_are_reported_for_the_process_that_collects() -> None:
    seconds = np.full((160, 2), 2e-5)
    seconds[10::20, 1] = 0.15
    work = healthy(Synthetic(ranks=2, steps=160))
    work["other"] += seconds
    case = case_of_seconds(work, fields={"gc_s": seconds})
    (together,) = diagnose(case).findings
    (finding,) = diagnose(apart(case)).findings
    assert finding.code == together.code == "gc-pauses"
    assert (together.victims, finding.victims) == ((0,), ())
    assert [culprit.pid for culprit in finding.culprits] == [1001]
    assert "stops rank 1 every 20 steps" in finding.title
    assert "other ranks" not in finding.cause


@pytest.mark.parametrize(("other", "reported"), [(0.02, True), (0.0, False)])
def test_they_are_bound_by_input_only_if_each_of_them_is(other: float, reported: bool) -> None:
    faults = [Fault(number, "input", 1e3 * each) for number, each in enumerate((0.02, other))]
    case = apart(synthetic_case(Synthetic(ranks=2, base=BASE, faults=faults)))
    assert ("input-bound" in codes(diagnose(case))) == reported


def test_the_heat_map_compares_none_of_them() -> None:
    case = synthetic_case(Synthetic(ranks=2))
    assert not isinstance(make_heatmap(case), str)
    assert "no process group" in str(make_heatmap(apart(case)))


# ------------------------------------------------------------------------------------------- ends


def failed(*ranks: Rank) -> Case:
    return make_case(ranks, outcome=Outcome.FAILED, exit_code=1)


def summary(findings: list[Finding]) -> list[tuple[str, list[int | None], tuple[int, ...]]]:
    return [
        (finding.code, [culprit.pid for culprit in finding.culprits], finding.victims)
        for finding in findings
    ]


def test_each_process_that_failed_is_named() -> None:
    case = failed(
        dead(0, exit_code=1, error=replace(error(line=87), at=1500.0)),
        dead(1, 1600.0, exit_code=1, error=replace(error("KeyError", "label", 12), at=1600.0)),
        dead(2, 1700.0, signal=9),
        rank(3),
    )
    assert summary(find(case)) == [("failed-exception", [1000], (1, 2, 3))]
    assert summary(find(apart(case))) == [
        ("failed-exception", [1000], ()),
        ("failed-exception", [1001], ()),
        ("failed-killed", [1002], ()),
    ]


def test_processes_that_their_program_ended_after_a_failure_are_not_named() -> None:
    case = failed(dead(0, exit_code=1, error=replace(error(), at=1500.0)), terminated(1))
    assert summary(find(apart(case))) == [("failed-exception", [1000], ())]


def test_nobody_waits_for_a_process_that_has_ended() -> None:
    case = make_case([dead(0, signal=9), waiting(1)])
    assert [finding.code for finding in find(case)] == ["hang-rank-dead"]
    assert summary(find(apart(case))) == [("failed-killed", [1000], ())]


@pytest.mark.parametrize(
    ("ending", "expected"),
    [
        ({"exit_code": 1}, Outcome.FAILED),
        ({"signal": 9}, Outcome.FAILED),
        ({"signal": 15}, Outcome.COMPLETED),
    ],
)
def test_a_program_that_ignores_a_failure_of_its_processes(
    ending: dict[str, Any], expected: Outcome
) -> None:
    case = apart(make_case([dead(0, **ending), rank(1)]))
    end = JobEnd(over=True, exit_code=0)
    assert outcome_of(end, list(case.ranks), launcher_alive=False) is expected


# ------------------------------------------------------------------------------------------ hangs

STOPPED = ProcessState((*LOOP, "work util.py:31"), state="T")


def hung(*states: ProcessState) -> tuple[list[Finding], list[Finding]]:
    """What is found in the stacks of the ranks of a group, and of independent ranks."""
    series = SnapshotSeries({number: [state] for number, state in enumerate(states)})
    ranks = [
        rank(number, pid=1000 + number, host="node-a", steps=np.zeros(0, STEP_DTYPE))
        for number in range(len(states))
    ]
    case = job_snapshots.case(series.snapshots(), ranks)
    return list(diagnose(case).findings), list(diagnose(apart(case)).findings)


def test_a_stopped_process_is_named_whatever_the_others_do() -> None:
    (together,), (finding,) = hung(ProcessState(collective()), STOPPED)
    assert finding.code == together.code == "hang-rank-behind"
    assert [(culprit.rank, culprit.pid) for culprit in finding.culprits] == [(1, 1001)]
    assert (together.victims, finding.victims) == ((0,), ())
    assert ("waits for it" in together.title, "wait" in finding.title) == (True, False)


def test_two_stopped_processes_are_both_named() -> None:
    _, (finding,) = hung(STOPPED, STOPPED)
    assert [culprit.pid for culprit in finding.culprits] == [1000, 1001]


def test_a_process_that_may_wait_for_something_of_its_own_is_not_named() -> None:
    together, found = hung(ProcessState(collective()), LOCKED[0])
    assert [finding.code for finding in together] == ["hang-rank-behind"]
    assert found == []


def test_a_process_that_ended_is_not_what_another_one_waits_for() -> None:
    together, found = hung(ProcessState(state="Z"), ProcessState(collective()))
    assert [finding.code for finding in together] == ["hang-rank-dead"]
    assert found == []
