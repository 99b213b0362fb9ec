"""Kills for lack of host memory: which source decides, and the confidence."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mgpu_doctor.case.model import Case, Outcome, State
from tests.support.ending_records import (
    GIB,
    MIB,
    failure_findings,
    group,
    kill,
    pid_of,
    process,
    sampled,
    with_end,
    with_ending_record,
)
from tests.support.failure_cases import (
    AT,
    dead,
    error,
    failed_job,
    rank,
    secondary_failure,
    terminated,
    waiting,
)
from tests.support.synthetic import Synthetic, records

WORKER = 5000
UNREADABLE: dict[str, Any] = {"log_trouble": "/dev/kmsg cannot be read: Operation not permitted"}
LOST = "DataLoader worker (pid {pid}) is killed by signal: Killed. "


def killed() -> Case:
    return failed_job(
        [secondary_failure(0), secondary_failure(1), dead(2, signal=9), terminated(3)]
    )


def lost_a_worker(message: str = LOST.format(pid=WORKER)) -> Case:
    raised = replace(error("RuntimeError", message), at=AT)
    case = failed_job([secondary_failure(0), dead(1, exit_code=1, error=raised)])
    return with_end(case, WORKER, 9)


def test_the_kernels_log_names_the_rank() -> None:
    case = with_ending_record(killed(), kills=(kill(pid_of(2)),), groups=(group(1),))
    (finding,) = failure_findings(case)
    assert finding.code == "oom-host"
    assert [culprit.rank for culprit in finding.culprits] == [2]
    assert finding.victims == (0, 1, 3)
    assert finding.confidence == pytest.approx(0.99)
    assert finding.title.startswith("Rank 2 was killed because host memory ran out after step 41")
    assert "64 GiB of its control group were full" in finding.title
    assert any(e.value == 60 * GIB and e.source == "kernel log" for e in finding.evidence)


def test_a_log_that_names_others_clears_the_memory() -> None:
    case = with_ending_record(killed(), kills=(kill(4711),), groups=(group(1),), machine_kills=1)
    (finding,) = failure_findings(case)
    assert finding.code == "failed-killed"
    assert "The kernel's OOM killer did not send it" in finding.cause
    (unread,) = failure_findings(with_ending_record(killed(), **UNREADABLE))
    assert "the usual senders are the kernel's OOM killer" in unread.cause


def test_inside_a_container_the_kernels_pids_are_others() -> None:
    case = with_ending_record(killed(), kills=(kill(pid_of(2)),), own_pids=False)
    assert [finding.code for finding in failure_findings(case)] == ["failed-killed"]
    case = with_ending_record(killed(), kills=(kill(77),), own_pids=False, groups=(group(1),))
    assert [finding.code for finding in failure_findings(case)] == ["oom-host"]


def test_the_groups_counter_tells_where_the_log_cannot_be_read() -> None:
    (finding,) = failure_findings(with_ending_record(killed(), **UNREADABLE, groups=(group(1),)))
    assert finding.code == "oom-host"
    assert finding.confidence == pytest.approx(0.95)


def test_the_machines_counter_tells_where_no_group_counts() -> None:
    case = with_ending_record(killed(), **UNREADABLE, groups=(group(None),), machine_kills=1)
    (finding,) = failure_findings(case)
    assert finding.code == "oom-host"
    assert finding.confidence == pytest.approx(0.85)


def test_a_kill_of_hours_ago_is_not_this_ranks() -> None:
    """Another process of the group, which the job survived."""
    for at, code in ((AT + 1, "oom-host"), (AT - 3600, "failed-killed")):
        old = replace(group(1), at=at)
        (finding,) = failure_findings(with_ending_record(killed(), **UNREADABLE, groups=(old,)))
        assert finding.code == code
        facts: dict[str, Any] = {"groups": (group(None),), "machine_kills": 1, "machine_at": at}
        (finding,) = failure_findings(with_ending_record(killed(), **UNREADABLE, **facts))
        assert finding.code == code


def test_a_kill_elsewhere_on_the_machine_is_not_this_ranks() -> None:
    case = with_ending_record(killed(), **UNREADABLE, groups=(group(0),), machine_kills=1)
    assert [finding.code for finding in failure_findings(case)] == ["failed-killed"]


@pytest.mark.parametrize(("used", "code"), [(63 * GIB, "oom-host"), (40 * GIB, "failed-killed")])
def test_where_nothing_counts_a_full_group_is_a_weak_hint(used: int, code: str) -> None:
    case = with_ending_record(killed(), **UNREADABLE, groups=(group(None),), machine_kills=None)
    (finding,) = failure_findings(sampled(case, {pid_of(2): GIB}, used=used, total=64 * GIB))
    assert finding.code == code
    if code == "oom-host":
        assert finding.confidence == pytest.approx(0.6)


def test_a_rank_that_vanished_is_as_sure_as_the_kernels_log() -> None:
    """Nobody saw its exit status."""
    case = failed_job([secondary_failure(0), dead(1)])
    assert failure_findings(with_ending_record(case))[0].confidence == pytest.approx(0.6)
    (finding,) = failure_findings(with_ending_record(case, kills=(kill(pid_of(1)),)))
    assert finding.code == "oom-host"
    assert finding.confidence == pytest.approx(0.99)


def test_sigkill_without_any_evidence_of_memory_stays_a_kill() -> None:
    assert [finding.code for finding in failure_findings(with_ending_record(killed()))] == [
        "failed-killed"
    ]
    assert [finding.code for finding in failure_findings(killed())] == ["failed-killed"]


def test_a_machine_without_memory_left_has_no_limit_to_raise() -> None:
    case = with_ending_record(killed(), kills=(kill(pid_of(2), by_group=False),))
    (finding,) = failure_findings(case)
    assert "the whole machine had no memory left" in finding.title
    assert "more memory" in finding.fixes[0].how


def test_who_used_how_much_is_reported_and_who_used_more() -> None:
    case = with_ending_record(killed(), kills=(kill(pid_of(2)),))
    resident = {pid_of(0): 30 * GIB, pid_of(2): 4 * GIB, WORKER: 6 * GIB}
    (finding,) = failure_findings(sampled(case, resident, {WORKER: pid_of(2)}))
    assert "Rank 0 used more: 30 GiB against 10 GiB" in finding.cause
    values = {e.measure: e.value for e in finding.evidence}
    assert values["resident memory of rank 0 in the last sample"] == 30 * GIB
    assert values["resident memory of its worker processes (1)"] == 6 * GIB


def test_workers_that_hold_most_of_it_are_reported_with_what_fewer_of_them_save() -> None:
    case = with_ending_record(killed(), kills=(kill(pid_of(2)),))
    resident = {pid_of(2): 2 * GIB, WORKER: 6 * GIB, WORKER + 1: 6 * GIB}
    parents = {WORKER: pid_of(2), WORKER + 1: pid_of(2)}
    (finding,) = failure_findings(sampled(case, resident, parents))
    assert "Worker processes held 12 GiB of the 14 GiB" in finding.cause
    (fewer,) = [fix for fix in finding.fixes if fix.id == "fewer-workers"]
    assert fewer.predicted is not None
    assert fewer.predicted.memory_bytes == -6 * GIB


@pytest.mark.parametrize(
    "message",
    [LOST.format(pid=WORKER), f"DataLoader worker (pid(s) {WORKER}) exited unexpectedly"],
)
def test_a_killed_worker_is_its_ranks_death(message: str) -> None:
    case = with_ending_record(lost_a_worker(message), ranks=(0, 1), kills=(kill(WORKER),))
    (finding,) = failure_findings(case)
    assert finding.code == "oom-host"
    assert [culprit.rank for culprit in finding.culprits] == [1]
    assert "lost a worker process because host memory ran out" in finding.title


def test_the_kernels_word_on_a_worker_is_enough() -> None:
    """Its parent buried it before anybody else could ask how it ended."""
    case = replace(
        lost_a_worker(f"DataLoader worker (pid(s) {WORKER}) exited unexpectedly"), ends=()
    )
    (finding,) = failure_findings(with_ending_record(case, ranks=(0, 1), kills=(kill(WORKER),)))
    assert finding.code == "oom-host"


def test_a_child_that_died_long_before_explains_nothing() -> None:
    helper = process(1, parent=pid_of(1))
    helper = replace(helper, pid=WORKER)
    raised = replace(error(), at=AT)
    case = failed_job([secondary_failure(0), dead(1, exit_code=1, error=raised)])
    for at, code in ((AT - 3, "oom-host"), (AT - 600, "failed-exception")):
        seen = replace(kill(WORKER), at=at)
        facts: dict[str, Any] = {"processes": {WORKER: helper}, "kills": (seen,)}
        (finding,) = failure_findings(with_ending_record(with_end(case, WORKER, 9, at), **facts))
        assert finding.code == code


def test_a_worker_that_somebody_else_killed_is_no_want_of_memory() -> None:
    (finding,) = failure_findings(with_ending_record(lost_a_worker(), ranks=(0, 1)))
    assert finding.code == "failed-exception"


def test_memory_that_the_kernel_refused_is_reported_with_its_limit() -> None:
    ranks = [
        secondary_failure(0),
        dead(1, exit_code=1, error=replace(error("MemoryError", ""), at=AT)),
    ]
    limited = process(1, limits={"address_space": (8 * GIB, 8 * GIB)})
    case = with_ending_record(failed_job(ranks), processes={limited.pid: limited})
    (finding,) = failure_findings(case)
    assert finding.code == "oom-host"
    assert "ran out of host memory at train.py:87" in finding.title
    assert "limit of 8 GiB (`ulimit -v`)" in finding.title
    assert "ulimit -v unlimited" in finding.fixes[0].how


@pytest.mark.parametrize(("mebibytes", "held"), [(16, GIB), (16, 100 * GIB), (0, GIB)])
def test_a_leak_that_filled_the_memory_is_why_it_ran_out(mebibytes: int, held: int) -> None:
    """And a small leak beside much that is held is told beside it."""
    job = Synthetic(ranks=2, steps=200)
    steps = records(job)
    for one in steps:
        one["resident_bytes"] = GIB
    steps[1]["resident_bytes"] = held + mebibytes * (1 << 20) * steps[1]["step"].astype(float)
    refused = replace(error("MemoryError", ""), at=AT)
    ranks = [
        replace(secondary_failure(0), steps=steps[0]),
        replace(dead(1, exit_code=1, error=refused), steps=steps[1]),
    ]
    found = {finding.code: finding for finding in failure_findings(failed_job(ranks))}
    died = found["oom-host"]
    filled = bool(mebibytes) and held == GIB
    assert ("It leaked: the memory of rank 1 grew by 16 MiB per step" in died.cause) is filled
    assert (died.fixes[0].id == "let-go") is filled
    assert ("leak-host" in died.replaces) is filled


@pytest.mark.parametrize(
    ("kind", "message", "code"),
    [
        (
            "RuntimeError",
            "[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate "
            "memory: you tried to allocate 4398046511104 bytes. Error code 12 (Cannot allocate "
            "memory)",
            "oom-host",
        ),
        (
            "numpy._core._exceptions._ArrayMemoryError",
            "Unable to allocate 7.28 TiB for an array with shape (1000000, 1000000)",
            "oom-host",
        ),
        ("OSError", "[Errno 12] Cannot allocate memory", "oom-host"),
        ("torch.OutOfMemoryError", "CUDA out of memory. Tried to allocate 2 GiB.", None),
        ("RuntimeError", "CUDA error: Cannot allocate memory", None),
        ("ValueError", "bad sample", None),
    ],
    ids=["torch", "numpy", "kernel", "device", "CUDA", "other"],
)
def test_allocators_of_the_host_and_no_others(kind: str, message: str, code: str | None) -> None:
    ranks = [secondary_failure(0), dead(1, exit_code=1, error=replace(error(kind, message), at=AT))]
    (finding,) = failure_findings(failed_job(ranks))
    assert finding.code == (code or "failed-exception")


def test_a_group_that_was_killed_whole_is_no_request_to_end() -> None:
    """`memory.oom.group`, as Kubernetes sets it."""
    ranks = [dead(n, AT + n / 100, signal=9) for n in range(4)]
    case = failed_job(ranks, outcome=Outcome.KILLED, exit_code=None, signal=9)
    assert failure_findings(with_ending_record(case)) == []
    kills = tuple(kill(pid_of(n)) for n in range(4))
    (finding,) = failure_findings(with_ending_record(case, kills=kills))
    assert finding.code == "oom-host"
    assert [culprit.rank for culprit in finding.culprits] == [0, 1, 2, 3]
    assert finding.title.startswith("Every rank was killed because host memory ran out")


def test_a_command_that_was_killed_before_it_was_a_rank() -> None:
    case = failed_job([], outcome=Outcome.KILLED, exit_code=None, signal=9)
    case = with_end(case, WORKER, 9)
    assert failure_findings(with_ending_record(case, ranks=())) == []
    (finding,) = failure_findings(with_ending_record(case, ranks=(), kills=(kill(WORKER),)))
    assert finding.code == "oom-host"
    assert [(culprit.rank, culprit.pid) for culprit in finding.culprits] == [(None, WORKER)]


def test_survivors_that_still_wait_are_a_hang_that_says_why() -> None:
    ranks = [waiting(0, since=AT), dead(1, signal=9), waiting(2, since=AT)]
    case = failed_job(ranks, outcome=Outcome.RUNNING, exit_code=None)
    (finding,) = failure_findings(with_ending_record(case, kills=(kill(pid_of(1)),)))
    assert finding.code == "hang-rank-dead"
    assert "The kernel's OOM killer killed it" in finding.cause


def test_two_hosts_are_not_mixed_up() -> None:
    """A kill on another host, of a process with the same pid."""
    case = with_ending_record(killed(), kills=(kill(pid_of(2)),))
    elsewhere = replace(case, endings=(replace(case.endings[0], host="other"),))
    assert [finding.code for finding in failure_findings(elsewhere)] == ["failed-killed"]


def test_healthy_jobs_are_silent_whatever_the_machine_went_through() -> None:
    left = [rank(n, state=State.EXITED, exit_code=0, ended=AT) for n in range(4)]
    done = failed_job(left, outcome=Outcome.COMPLETED, exit_code=0)
    stormy: dict[str, Any] = {
        "kills": (kill(4711),),
        "groups": (group(3, 64 * MIB),),
        "machine_kills": 3,
    }
    assert failure_findings(with_ending_record(done, **stormy)) == []
    running = failed_job([rank(0), rank(1)], outcome=Outcome.RUNNING, exit_code=None)
    assert failure_findings(with_ending_record(running, **stormy)) == []


@pytest.mark.parametrize(("grown", "filled"), [(1.1, True), (0.9, False)])
def test_a_leak_that_is_half_of_the_memory_is_why_it_ran_out(grown: float, filled: bool) -> None:
    steps = records(Synthetic(ranks=2, steps=205))
    step = steps[1]["step"].astype(float)
    for one in steps:
        one["resident_bytes"] = GIB
    last = 16.0 * GIB
    slope = grown * 0.5 * last / 199
    steps[1]["resident_bytes"] = last + slope * (step - step[-1])
    refused = replace(error("MemoryError", ""), at=AT)
    ranks = [
        replace(secondary_failure(0), steps=steps[0]),
        replace(dead(1, exit_code=1, error=refused), steps=steps[1]),
    ]
    (died,) = [
        finding for finding in failure_findings(failed_job(ranks)) if finding.code == "oom-host"
    ]
    assert ("It leaked" in died.cause) is filled


@pytest.mark.parametrize(("other", "told_more"), [(12.5, True), (12.4, False)])
def test_a_rank_that_used_a_quarter_more_is_reported(other: float, told_more: bool) -> None:
    case = with_ending_record(killed(), kills=(kill(pid_of(2)),))
    resident = {pid_of(0): int(other * GIB), pid_of(2): 10 * GIB}
    (finding,) = failure_findings(sampled(case, resident))
    assert ("Rank 0 used more" in finding.cause) is told_more
