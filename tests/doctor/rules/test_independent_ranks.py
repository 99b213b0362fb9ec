"""Processes that train at the same time without a process group: each is examined by itself.

Most tests also examine the same facts as those of a process group, where they mean something else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from mgpu_probes.outside.jobs import JobProcess, RunningJob

from mgpu_doctor.case.model import Case, JobEnd, Outcome, Rank
from mgpu_doctor.case.outcomes import outcome_of
from mgpu_doctor.case.process_case import case_of
from mgpu_doctor.diagnosis import diagnose
from mgpu_doctor.findings import Diagnosis, Finding, Severity
from mgpu_doctor.live.step_heatmap import make_heatmap
from mgpu_doctor.recording.box import STEP_DTYPE
from mgpu_doctor.report.verdict import job_line, verdict
from tests.support import job_snapshots
from tests.support.failure_cases import dead, error, find, rank, terminated, waiting
from tests.support.job_snapshots import (
    JOINING,
    LOCKED,
    LOOP,
    ProcessState,
    SnapshotSeries,
    busy_process,
    collective,
)
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


def test_each_process_that_failed_has_the_code_of_its_own_reason() -> None:
    ends = [
        ("KeyError", "label"),
        ("OSError", "[Errno 28] No space left on device: '/scratch/checkpoint.pt'"),
        ("MemoryError", ""),
    ]
    ranks = []
    for number, (kind, message) in enumerate(ends):
        at = 1500.0 + 100 * number
        ranks.append(dead(number, at, exit_code=1, error=replace(error(kind, message), at=at)))
    case = failed(*ranks)

    def causes(case: Case) -> list[tuple[str, list[int | None], tuple[int, ...]]]:
        found = diagnose(case).findings
        return sorted(summary([one for one in found if one.severity is Severity.CRITICAL]))

    assert causes(case) == [("failed-exception", [1000], (1, 2))]
    assert causes(apart(case)) == [
        ("failed-disk-full", [1001], ()),
        ("failed-exception", [1000], ()),
        ("oom-host", [1002], ()),
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


ASLEEP = ProcessState((*LOOP, "Job.stand train.py:70"), syscall="clock_nanosleep")
TAKEN = LOCKED[0]
IN_A_QUEUE = ProcessState((*LOOP, "Queue.get multiprocessing/queues.py:102"))
TRAINS = busy_process((*LOOP, "decode data.py:31"), 3, active=True, state="R", syscall=None)
IN_A_STEP = (*LOOP, "Linear.forward torch/nn/modules/linear.py:125")


def sampled(
    states: Sequence[ProcessState], steps: int = 0, other: Sequence[ProcessState] = TRAINS
) -> Diagnosis:
    """Two independent ranks; rank 1 has recorded so many steps of 40 ms."""
    snapshots = SnapshotSeries({0: other, 1: states}).snapshots()
    recorded = np.zeros(steps, STEP_DTYPE)
    recorded["step"] = np.arange(steps)
    recorded["wall_ns"] = 40_000_000
    ranks = [
        rank(number, pid=1000 + number, host="node-a", steps=recorded[: number * steps])
        for number in range(2)
    ]
    return diagnose(apart(job_snapshots.case(snapshots, ranks)))


@pytest.mark.parametrize(
    ("state", "severity"), [(ASLEEP, Severity.INFO), (TAKEN, Severity.WARNING)]
)
@pytest.mark.parametrize(
    ("rested", "steps", "named"),
    [(31.0, 0, True), (29.0, 0, False), (11.0, 30, True), (9.0, 30, False)],
)
def test_a_process_that_has_not_run_for_long_is_named_while_another_one_trains(
    state: ProcessState, severity: Severity, rested: float, steps: int, named: bool
) -> None:
    """One that sleeps may do so on purpose, such as an evaluation every minute: a note."""
    diagnosis = sampled([replace(state, rested=rested)], steps)
    found = [one for one in diagnosis.findings if one.code == "hang-rank-behind"]
    assert bool(found) is named
    if found:
        (finding,) = found
        assert finding.severity is severity
        assert [(culprit.rank, culprit.pid) for culprit in finding.culprits] == [(1, 1001)]
        assert finding.victims == ()
        assert ("train.py:70" if state is ASLEEP else "util.py:31") in finding.title
        assert finding.evidence[-1].value == pytest.approx(rested)
    assert diagnosis.case.job.outcome is Outcome.RUNNING


@pytest.mark.parametrize(
    "states",
    [
        [replace(IN_A_QUEUE, rested=100.0)],
        [replace(ASLEEP, rested=100.0, others_cpu=float(each)) for each in range(3)],
        busy_process((*LOOP, "Job.evaluate train.py:75"), 3),
    ],
)
def test_a_process_that_waits_for_work_or_does_some_is_not_named(
    states: Sequence[ProcessState],
) -> None:
    assert sampled(states).findings == ()


def attached(*ranks: Sequence[ProcessState], apart: bool = True) -> Case:
    """A job that multiprocessing started, of which nothing is known but snapshots."""
    series = SnapshotSeries(dict(enumerate(ranks))).snapshots()
    snapshots = [
        replace(
            snapshot,
            apart=apart,
            world_size=None,
            processes=tuple(
                replace(process, rank=None, world_size=None) for process in snapshot.processes
            ),
        )
        for snapshot in series
    ]
    processes = tuple(
        JobProcess(
            1000 + number, 1, "rank", "S", None, None, None, "python", ("python",), 100 - number,
            1.0, 0, None, None, None,
        )
        for number in range(len(ranks))
    )  # fmt: skip
    job = RunningJob("mp.spawn", 1, None, processes, apart=apart)
    return case_of(job, snapshots, 1e6)


def test_processes_in_no_group_that_train_are_independent_ranks_in_the_order_of_their_start() -> (
    None
):
    steps = busy_process(IN_A_STEP, 3, active=True, state="R", syscall=None)
    diagnosis = diagnose(attached(steps, [replace(ASLEEP, rested=31.0)]))
    assert "2 independent ranks" in job_line(diagnosis)
    (finding,) = diagnosis.findings
    assert [(culprit.rank, culprit.pid) for culprit in finding.culprits] == [(0, 1001)]
    soon = diagnose(attached(steps, [replace(ASLEEP, rested=12.0)]))
    assert soon.findings == ()
    assert "rank 0 has been in stand() train.py:70" in verdict(soon).sentence


@pytest.mark.parametrize(
    ("other", "apart"),
    [
        ([ProcessState(JOINING)], True),  # on its way into a group
        (TRAINS, True),  # not yet seen in a step
        (busy_process(IN_A_STEP, 3, active=True, state="R", syscall=None), False),
    ],
)
def test_ranks_that_may_be_in_a_group_are_not_called_independent(
    other: Sequence[ProcessState], apart: bool
) -> None:
    diagnosis = diagnose(attached(other, [ASLEEP], apart=apart))
    assert "independent" not in job_line(diagnosis)


@pytest.mark.parametrize("apart", [True, False])
def test_without_a_group_a_lock_is_no_wait_for_an_asynchronous_collective(apart: bool) -> None:
    naps = [replace(ASLEEP, cpu=10 + 0.01 * each) for each in range(3)]
    found = diagnose(attached(naps, [replace(TAKEN, rested=20.0)], apart=apart)).findings
    accused = [culprit.pid for finding in found for culprit in finding.culprits]
    assert accused == ([] if apart else [1000])
