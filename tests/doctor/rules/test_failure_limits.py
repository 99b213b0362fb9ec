"""Both sides of the times and shares that decide which rank failed first, why, and which ranks
wait."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from mgpu_doctor.analysis.measures import measure
from mgpu_doctor.analysis.postmortem.failure_order import find_latest_end
from mgpu_doctor.case.log_matches import LogMatch
from mgpu_doctor.case.model import Case, Console, Now, Outcome, Rank, Wait
from mgpu_doctor.diagnosis import diagnose
from mgpu_doctor.findings import Severity
from tests.support.ending_records import (
    GIB,
    failure_findings,
    group,
    kill,
    pid_of,
    process,
    sampled,
    with_ending_record,
)
from tests.support.ending_records import place as file_system
from tests.support.failure_cases import (
    AT,
    dead,
    error,
    failed_job,
    find,
    logged_end,
    lost_peer,
    secondary_failure,
    step_records,
    terminated,
    waiting,
)

UNREADABLE: dict[str, Any] = {"log_trouble": "/dev/kmsg cannot be read: Operation not permitted"}


def codes_and_culprits(case: Case) -> list[tuple[str, list[int | None]]]:
    """Code and culprits of what the rules of failures find."""
    return [
        (finding.code, [culprit.rank for culprit in finding.culprits])
        for finding in failure_findings(case)
    ]


def killed() -> Case:
    return failed_job(
        [secondary_failure(0), secondary_failure(1), dead(2, signal=9), terminated(3)]
    )


# --- who was first --------------------------------------------------------------------------


@pytest.mark.parametrize(("later", "culprits"), [(0.99, [1, 2]), (1.01, [1])])
def test_the_same_signal_within_a_second_is_one_event(later: float, culprits: list[int]) -> None:
    ranks = [secondary_failure(0, AT + 2), dead(1, AT, signal=9), dead(2, AT + later, signal=9)]
    assert codes_and_culprits(failed_job(ranks)) == [("failed-killed", culprits)]


@pytest.mark.parametrize(("gap", "culprits"), [(0.06, [1]), (0.04, [])])
def test_among_echoes_a_signal_that_came_clearly_before_all_was_first(
    gap: float, culprits: list[int]
) -> None:
    case = failed_job([secondary_failure(0, AT + gap), dead(1, AT, signal=15)])
    assert [who for _, who in codes_and_culprits(case) if who] == ([culprits] if culprits else [])


def test_of_failures_without_a_time_the_one_that_the_launcher_noticed_first_counts() -> None:
    ends = (
        logged_end(rank=0, exit_code=3),
        logged_end(rank=1, exit_code=2, first=True),
        logged_end(rank=2, exit_code=4),
    )
    (finding,) = failure_findings(failed_job([], console=Console(ends=ends)))
    assert [culprit.rank for culprit in finding.culprits] == [1]


@pytest.mark.parametrize(("before", "known"), [(1.9, AT - 1.9), (2.1, AT), (-0.1, AT)])
def test_lost_connections_show_that_a_process_was_gone_before_it_was_seen_gone(
    before: float, known: float
) -> None:
    case = failed_job([secondary_failure(0, AT - before), dead(1, AT, signal=9)])
    case = replace(
        case,
        ranks=(
            replace(case.ranks[0], error=lost_peer(AT - before)),
            case.ranks[1],
        ),
    )
    failures = {failure.rank: failure for failure in measure(case).postmortem.failures}
    assert find_latest_end(failures[1], case) == pytest.approx(known)
    elsewhere = replace(case, ranks=(replace(case.ranks[0], host="other"), case.ranks[1]))
    assert find_latest_end(failures[1], elsewhere) == AT


# --- who waits for a dead rank --------------------------------------------------------------


def live(ranks: list[Rank], seconds: float) -> Case:
    case = failed_job(ranks, outcome=Outcome.RUNNING, exit_code=None)
    return replace(case, observed=AT + seconds)


@pytest.mark.parametrize(("seconds", "code"), [(10.9, "hang-rank-dead"), (10.7, "failed-killed")])
def test_the_wait_counts_from_the_last_of_the_deaths(seconds: float, code: str) -> None:
    ranks = [waiting(0, AT), dead(1, AT, signal=9), dead(2, AT + 0.8, signal=9)]
    assert [one.code for one in find(live(ranks, seconds))] == [code]


@pytest.mark.parametrize(("seconds", "code"), [(30.1, "hang-rank-dead"), (29.9, "failed-killed")])
def test_the_wait_counts_from_when_it_began(seconds: float, code: str) -> None:
    ranks = [waiting(0, AT + 20), dead(1, AT, signal=9)]
    assert [one.code for one in find(live(ranks, seconds))] == [code]


# --- who never came -------------------------------------------------------------------------


def timed_out(number: int, seconds: float, **changes: Any) -> Rank:
    raised = replace(lost_peer(AT), wait=Wait(AT - seconds, seconds, "all_reduce /t.py:22"))
    return elsewhere(number, 0.0, **{"signal": None, "exit_code": 1, "error": raised, **changes})


def elsewhere(number: int, seconds: float, **changes: Any) -> Rank:
    now = Now("input", AT + 0.5 - seconds, 42, None, None)
    facts = {"birth": {"clock": "cpu"}, "signal": 15, "now": now, **changes}
    return dead(number, AT + 0.5, **facts)


@pytest.mark.parametrize(
    ("waits", "away", "step", "names"),
    [
        ((6.0, 5.0), 4.51, 0.02, True),
        ((6.0, 5.0), 4.49, 0.02, False),
        ((2.01, 2.01), 2.01, 0.02, True),
        ((1.99, 1.99), 1.99, 0.02, False),
        ((6.0, 5.0), 6.0, 0.59, True),
        ((6.0, 5.0), 6.0, 0.61, False),
    ],
)
def test_how_long_ranks_waited_for_one_that_did_not_come(
    waits: tuple[float, float], away: float, step: float, names: bool
) -> None:
    steps = step_records(seconds=step)
    ranks = [
        timed_out(0, waits[0], steps=steps),
        elsewhere(1, away, steps=steps),
        timed_out(2, waits[1], steps=steps),
    ]
    findings = [
        finding
        for finding in diagnose(failed_job(ranks)).findings
        if finding.code == "hang-rank-behind"
    ]
    assert [[culprit.rank for culprit in one.culprits] for one in findings] == [[1]] * names
    assert all(waits[0] in [row.value for row in one.evidence] for one in findings)


# --- whether memory ran out -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("facts", "code"),
    [
        ({"groups": (replace(group(1), at=AT - 9.9),)}, "oom-host"),
        ({"groups": (replace(group(1), at=AT - 10.1),)}, "failed-killed"),
        ({"groups": (group(None),), "machine_kills": 1, "machine_at": AT - 9.9}, "oom-host"),
        ({"groups": (group(None),), "machine_kills": 1, "machine_at": AT - 10.1}, "failed-killed"),
    ],
)
def test_a_counter_that_rose_within_ten_seconds_tells(facts: Mapping[str, Any], code: str) -> None:
    assert codes_and_culprits(with_ending_record(killed(), **UNREADABLE, **facts)) == [(code, [2])]


@pytest.mark.parametrize(
    ("used", "ago", "code"),
    [
        (96, 59.0, "oom-host"),
        (94, 59.0, "failed-killed"),
        (96, 61.0, "failed-killed"),
        (96, -1.0, "failed-killed"),
    ],
)
def test_memory_that_was_full_in_the_last_minute_is_a_hint(
    used: int, ago: float, code: str
) -> None:
    case = with_ending_record(killed(), **UNREADABLE, groups=(group(None),), machine_kills=None)
    case = sampled(case, {pid_of(2): GIB}, used=used * GIB, total=100 * GIB)
    (sample,) = case.host_samples
    assert codes_and_culprits(
        replace(case, host_samples=(structs.replace(sample, at=AT - ago),))
    ) == [(code, [2])]


@pytest.mark.parametrize(("early", "code"), [(59.0, "oom-host"), (61.0, "failed-killed")])
def test_a_kill_before_the_job_began_was_another_process(early: float, code: str) -> None:
    """The kernel's clock may be a minute behind; the job began at 1000."""
    old = replace(kill(pid_of(2)), at=1000.0 - early)
    assert codes_and_culprits(with_ending_record(killed(), kills=(old,))) == [(code, [2])]


@pytest.mark.parametrize(
    ("by_group", "known", "full"),
    [(None, True, "64 GiB"), (None, False, None), (True, True, "64 GiB"), (False, True, None)],
)
def test_the_limit_that_was_reached_is_that_of_the_process(
    by_group: bool | None, known: bool, full: str | None
) -> None:
    seen = replace(kill(pid_of(2), by_group=by_group), limited=None)
    processes = {pid_of(2): process(2)} if known else {}
    (finding,) = failure_findings(
        with_ending_record(killed(), kills=(seen,), groups=(group(1),), processes=processes)
    )
    assert finding.code == "oom-host"
    assert (full is not None and full in finding.title) is (full is not None)
    assert ("control group" in finding.title) is (full is not None or by_group is True)


# --- what else ran out ----------------------------------------------------------------------

NO_ROOM = "[Errno 28] No space left on device: '/scratch/run/checkpoint.pt'"


def raised(kind: str, message: str) -> Case:
    return failed_job(
        [
            secondary_failure(0),
            dead(1, exit_code=1, error=replace(error(kind, message), at=AT)),
            terminated(2),
        ]
    )


@pytest.mark.parametrize(("free", "code"), [(9, "shm-exhausted"), (11, "failed-signal")])
def test_shared_memory_of_which_a_tenth_is_free_is_nearly_full(free: int, code: str) -> None:
    case = failed_job([secondary_failure(0), dead(1, signal=7), terminated(2)])
    shm = (file_system("/dev/shm", "shm", 100 * GIB, free * GIB),)
    assert codes_and_culprits(with_ending_record(case, places=shm)) == [(code, [1])]


@pytest.mark.parametrize(("cpu", "code"), [(6500, "failed-time-limit"), (6460, "failed-killed")])
def test_nine_tenths_of_the_cpu_time_are_spent(cpu: float, code: str) -> None:
    limited = process(1, limits={"cpu_seconds": (7200, 7200)})
    case = failed_job([secondary_failure(0), dead(1, signal=9), terminated(2)])
    case = with_ending_record(case, processes={limited.pid: limited})
    assert codes_and_culprits(sampled(case, {pid_of(1): GIB}, cpu=cpu)) == [(code, [1])]


def test_the_evidence_of_a_full_file_system_has_its_room_and_its_inodes() -> None:
    full = (file_system("/scratch", "written", 100 * GIB, 9 * GIB, inodes=0),)
    (finding,) = failure_findings(with_ending_record(raised("OSError", NO_ROOM), places=full))
    measured = [(row.value, row.baseline, row.unit) for row in finding.evidence]
    assert (9 * GIB, 100 * GIB, "bytes") in measured
    assert (0, 100, "inodes") in measured
    roomy = (file_system("/scratch", "written", 100 * GIB, 9 * GIB, inodes=1),)
    (finding,) = failure_findings(with_ending_record(raised("OSError", NO_ROOM), places=roomy))
    assert "inodes" not in [row.unit for row in finding.evidence]


@pytest.mark.parametrize(
    ("function", "inside"), [("main", True), ("<module>", False), (None, False)]
)
def test_the_function_that_ended_the_process_is_reported(
    function: str | None, inside: bool
) -> None:
    for kind, code in (("SystemExit", 3), ("ValueError", 1)):
        raised_ = replace(error(kind, "3"), function=function, at=AT)
        case = failed_job([secondary_failure(0), dead(1, exit_code=code, error=raised_)])
        (finding,) = failure_findings(case)
        assert (" in main()" in finding.cause) is inside


def test_a_time_out_in_the_log_is_no_finding_of_its_own_beside_the_wait_that_it_ended() -> None:
    match = LogMatch(
        "gloo-timeout",
        0,
        "stderr",
        0,
        "RuntimeError: Timed out waiting 20000ms for recv operation to complete",
        None,
        values={"milliseconds": "20000", "operation": "recv"},
    )
    for away, codes in ((6.0, ["hang-rank-behind"]), (3.0, ["failed-gloo"])):
        case = failed_job([timed_out(0, 6.0), elsewhere(1, away)])
        findings = diagnose(replace(case, signs=(match,))).findings
        assert [one.code for one in findings if one.severity is Severity.CRITICAL] == codes
