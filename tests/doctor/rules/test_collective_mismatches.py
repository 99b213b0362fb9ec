"""Collectives that do not match between ranks, by the flight recorder."""

from __future__ import annotations

import random
import re
from dataclasses import replace

import pytest

from mgpu_doctor.analysis.measures import measure
from mgpu_doctor.case.flight_records import Collective, Flight
from mgpu_doctor.case.model import Case, Job, Outcome, State, Subject
from mgpu_doctor.diagnosis import diagnose
from mgpu_doctor.findings import Diagnosis, Finding, Severity
from mgpu_doctor.rules.hang.mismatch import find_rank_behind
from tests.support import job_snapshots
from tests.support.failure_cases import dead, error, failed_job, rank, step_records
from tests.support.flight_records import Call, recorded, schedule, simulated

LATE = 30.0
GAVE_UP = "Application timeout caused pair closure"
"""What gloo raises where the other end of a connection waited too long."""


def case(flights: tuple[Flight, ...], outcome: Outcome = Outcome.UNKNOWN) -> Case:
    nothing = (None, None, None, None, None)
    job = Job("", (), *nothing, (), None, None, outcome, None, None, None)
    return Case(Subject("trace", "dumps"), job, 0.0, (), flights=flights)


def examined(flights: tuple[Flight, ...]) -> Diagnosis:
    return diagnose(case(flights))


def single_finding(flights: tuple[Flight, ...]) -> Finding:
    (finding,) = examined(flights).findings
    return finding


TITLES = {
    "skip": r"Rank 2 skipped all_reduce \[8\] at mismatches.py:\d+, which ranks 0, 1 and 3 called",
    "silent": r"Rank 2 skipped all_reduce \[8\] at mismatches.py:\d+, which ranks 0, 1 and 3",
    "extra": r"Rank 2 called all_reduce \[1\] at mismatches.py:\d+, which ranks 0, 1 and 3 did not",
    "operation": r"Rank 2 called all_gather \[8\] at .* where ranks 0, 1 and 3 called all_reduce",
    "branch": r"Rank 2 called broadcast \[1\] at .* where ranks 0, 1 and 3 called all_reduce \[1\]",
    "dtype": r"Rank 2 called all_reduce \[1\] at .* where ranks 0, 1 and 3 called all_reduce \[1\]",
    "deadlock": r"Ranks 1 and 2 broke the usual order .* in group 2.* ranks 0-2 wait",
}


@pytest.mark.parametrize("kind", TITLES)
def test_both_places_and_the_culprit_are_reported(kind: str) -> None:
    finding = single_finding(recorded(kind, LATE))
    assert finding.code == "hang-collective-mismatch"
    assert finding.severity is (Severity.WARNING if kind == "dtype" else Severity.CRITICAL)
    assert re.match(TITLES[kind], finding.title)
    places = {item.where for item in finding.evidence if item.where}
    assert len(places) == (1 if kind == "deadlock" else 2)
    assert all("/mismatches.py:" in place for place in places)
    assert 2 in {culprit.rank for culprit in finding.culprits}
    assert not {culprit.rank for culprit in finding.culprits} & set(finding.victims)
    assert finding.fixes


def test_the_types_are_in_the_evidence() -> None:
    said = {item.measure: item.value for item in single_finding(recorded("dtype", LATE)).evidence}
    assert said["rank 2"] == "all_reduce [1] Int"
    assert said["ranks 0, 1 and 3"] == "all_reduce [1] Float"


@pytest.mark.parametrize("kind", ["asleep", "asleep-json"])
def test_a_rank_that_never_comes_is_behind(kind: str) -> None:
    finding = single_finding(recorded(kind, LATE))
    assert finding.code == "hang-rank-behind"
    assert finding.severity is Severity.CRITICAL
    assert [culprit.rank for culprit in finding.culprits] == [2]
    assert finding.victims == (0, 1, 3)
    assert "30 s" in finding.title


def test_a_blocked_job_is_hung() -> None:
    assert examined(recorded("skip", LATE)).case.job.outcome is Outcome.HUNG


def test_a_delay_of_unknown_length_is_info() -> None:
    finding = single_finding(recorded("asleep", 90_000.0))
    assert finding.severity is Severity.INFO
    assert finding.confidence <= 0.5


@pytest.mark.parametrize(
    "kind", ["healthy", "healthy-fast", "healthy-groups", "healthy-ddp", "healthy-json"]
)
def test_healthy_jobs_give_nothing(kind: str) -> None:
    diagnosis = examined(recorded(kind, -12.0 if kind != "healthy-json" else 3.0))
    assert not diagnosis.findings
    assert not [gap for gap in diagnosis.unexamined if gap.probe == "flight recorder"]


def test_too_few_dumps_are_a_known_gap_with_a_remedy() -> None:
    diagnosis = examined(recorded("healthy")[:1])
    (missing,) = [gap for gap in diagnosis.unexamined if gap.probe == "flight recorder"]
    assert "one rank" in missing.reason
    assert "all ranks" in missing.remedy


def test_a_job_without_dumps_has_no_gap() -> None:
    diagnosis = examined(())
    assert not [gap for gap in diagnosis.unexamined if gap.probe == "flight recorder"]


def test_a_dead_rank_is_not_called_late() -> None:
    flights = recorded("asleep", LATE)
    measures = measure(replace(case(flights), ranks=(dead(2, signal=9),)))
    assert measures.case.ranks[0].state is State.DEAD
    assert not list(find_rank_behind(measures, {}))


def test_the_step_is_that_of_the_ranks_that_wait() -> None:
    ranks = tuple(rank(number, steps=step_records(41 + number)) for number in range(4))
    findings = diagnose(replace(case(recorded("skip", LATE)), ranks=ranks)).findings
    assert [one.since_step for one in findings if one.code == "hang-collective-mismatch"] == [41]


def test_two_calls_in_one_helper_are_reported_with_their_callers() -> None:
    """All collectives come from one wrapper, so its line says nothing."""
    programs = {
        rank: [Call("0", line=7) for _ in range(6)]
        + [Call("0", size=9 if rank == 1 else 8, line=7)]
        for rank in range(3)
    }
    flights = simulated(programs, {"0": (0, 1, 2)}, lambda _: 60.0)
    calls = flights[1].collectives
    last = replace(calls[-1], frames=(calls[-1].frames[0], ("/home/me/train.py", 55, "evaluate")))
    flights = (flights[0], replace(flights[1], collectives=(*calls[:-1], last)), flights[2])
    finding = single_finding(flights)
    assert "train.py:55" in finding.title
    assert "train.py:900" in finding.title


def test_two_against_two_names_both_sides_and_blames_no_one() -> None:
    programs = {
        rank: [Call("0", line=1) for _ in range(5)] + [Call("0", size=8 + rank // 2, line=40)]
        for rank in range(4)
    }
    finding = single_finding(simulated(programs, {"0": (0, 1, 2, 3)}, lambda _: 60.0))
    assert finding.culprits == ()
    assert finding.victims == (0, 1, 2, 3)
    assert "ranks 0 and 1" in finding.title.lower()
    assert "ranks 2 and 3" in finding.title.lower()
    assert finding.confidence <= 0.6


@pytest.mark.parametrize(("line", "fix"), [(40, "same-sizes"), (77, "all-or-none")])
def test_the_fix_depends_on_whether_one_line_made_both_calls(line: int, fix: str) -> None:
    before = [Call("0", line=1) for _ in range(5)]
    programs = {rank: [*before, Call("0", line=40)] for rank in range(4)}
    programs[2][-1] = Call("0", size=1, line=line)
    finding = single_finding(simulated(programs, {"0": (0, 1, 2, 3)}, lambda _: 60.0))
    assert [culprit.rank for culprit in finding.culprits] == [2]
    assert [proposed.id for proposed in finding.fixes] == [fix, "debug-detail"]


def test_stacks_decide_which_rank_is_behind_at_a_new_call() -> None:
    """The dumps alone do not show whether it is blocked or never makes the call."""
    programs = {rank: [Call("0", line=1) for _ in range(5)] for rank in range(2)}
    programs[0].append(Call("0", line=40))
    flights = simulated(programs, {"0": (0, 1)}, lambda _: 60.0)
    finding = single_finding(flights)
    assert (finding.code, finding.culprits) == ("hang-collective-mismatch", ())
    assert finding.victims == ()
    asleep = job_snapshots.snapshot_series(
        {1: [job_snapshots.ProcessState(job_snapshots.LOOP, syscall="clock_nanosleep")]}, ranks=2
    )
    standing = replace(job_snapshots.case(asleep.snapshots()), flights=flights)
    (finding,) = diagnose(standing).findings
    assert (finding.code, [culprit.rank for culprit in finding.culprits]) == (
        "hang-rank-behind",
        [1],
    )


def test_timeouts_in_different_collectives_are_one_finding() -> None:
    programs = {
        rank: [Call("0", line=1) for _ in range(5)] + [Call("0", size=8 + rank, line=40)]
        for rank in range(2)
    }
    flights = simulated(programs, {"0": (0, 1)}, lambda _: 60.0)
    said = ("Timed out waiting 20000ms for send operation to complete", GAVE_UP)
    ranks = [dead(n, exit_code=1, error=error("RuntimeError", said[n])) for n in range(2)]
    findings = diagnose(replace(failed_job(ranks), flights=flights)).findings
    (finding,) = (finding for finding in findings if finding.severity is not Severity.INFO)
    assert (finding.code, finding.victims) == ("hang-collective-mismatch", (0, 1))
    assert diagnose(failed_job(ranks)).findings[0].culprits == ()


def test_a_ring_in_the_first_step_names_all_and_blames_no_one() -> None:
    groups = {"0": (0, 1, 2), "1": (0, 1), "2": (1, 2), "3": (0, 2)}
    orders = {0: "13", 1: "21", 2: "32"}
    programs = {rank: [Call(group, line=9) for group in order] for rank, order in orders.items()}
    finding = single_finding(simulated(programs, groups, lambda _: 60.0))
    assert finding.culprits == ()
    assert finding.victims == (0, 1, 2)
    assert finding.title.startswith("Ranks 0-2 wait for each other")
    assert {"rank 0, group 1", "rank 1, group 2", "rank 2, group 3"} <= {
        item.measure for item in finding.evidence
    }


def test_damaged_dumps_give_sensible_findings() -> None:
    """Cut, reordered or contradicting: never an exception, and no rank is culprit and victim."""
    for seed in range(150):
        chance = random.Random(seed)
        programs, groups = schedule(seed, 2 + seed % 4, 12)
        dumped = {rank: chance.choice((0.3, 5.0, 90.0)) for rank in programs}
        flights = simulated(programs, groups, dumped.__getitem__)
        damaged = tuple(damage(flight, chance) for flight in flights)
        for finding in examined(damaged).findings:
            culprits = {culprit.rank for culprit in finding.culprits}
            assert not culprits & set(finding.victims), seed
            assert finding.title
            assert "None" not in finding.title + finding.cause, seed


def damage(flight: Flight, chance: random.Random) -> Flight:
    calls = [
        corrupted(collective, chance) for collective in flight.collectives if chance.random() > 0.05
    ]
    if chance.random() < 0.1:
        chance.shuffle(calls)
    return replace(
        flight,
        rank=chance.choice((flight.rank, flight.rank, flight.rank, 0, None)),
        collectives=tuple(calls),
        groups=chance.choice((flight.groups, {}, {"0": (5, 6)}, {"0": (0,), "1": (0, 1)})),
        at=chance.choice((flight.at, flight.at, None)),
        lost=chance.choice((0, 7)),
        slack=chance.choice((0.0, 15.0)),
    )


def corrupted(one: Collective, chance: random.Random) -> Collective:
    if chance.random() > 0.05:
        return one
    return replace(
        one,
        sequence=chance.choice((one.sequence, None, 3)),
        group=chance.choice((one.group, "0", "9")),
        created=chance.choice((one.created, None, 1e300)),
        state=chance.choice((None, "started", "completed", "?")),
        retired=chance.choice((None, True, False)),
        frames=chance.choice((one.frames, (), one.frames[:1])),
        site=chance.choice((one.site, None, ("else.py", None, "f"))),
        timeout=chance.choice((None, 0.0, 600.0)),
        p2p=chance.random() < 0.2,
        operation=chance.choice((one.operation, "send 0->1", "recv 1<-0", "send 9->9", "?")),
    )


@pytest.mark.parametrize(("pid", "expected"), [(None, 77), (1002, 1002)])
def test_a_culprits_process_is_known_by_the_case_or_by_its_dump(
    pid: int | None, expected: int
) -> None:
    flights = tuple(
        replace(one, pid=77 if one.rank == 2 else 78, host="node-b")
        for one in recorded("operation", LATE)
    )
    examined_case = case(flights)
    if pid is not None:
        known = rank(2, pid=pid, host="node-a")
        examined_case = replace(examined_case, ranks=(known,))
    (culprit,) = next(
        finding.culprits
        for finding in diagnose(examined_case).findings
        if finding.code == "hang-collective-mismatch"
    )
    host = "node-b" if pid is None else "node-a"
    assert (culprit.rank, culprit.pid, culprit.host) == (2, expected, host)
