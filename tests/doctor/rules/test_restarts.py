"""What restarts cost: lost work, time without a step, and nothing where there was none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mgpu_doctor.analysis.postmortem.restarts import find_restarts
from mgpu_doctor.case.model import Case, Error, Event, LoggedEnd, Rank, State
from mgpu_doctor.diagnosis import diagnose
from mgpu_doctor.findings import Finding, Severity
from mgpu_doctor.recording.box import STEP_DTYPE
from tests.support.synthetic import make_case, make_rank

BEGAN = 1000.0
STEP = 0.5


def attempt(
    number: int, began: float, steps: int, *, saved_at: int | None = None, first: int = 0
) -> list[Rank]:
    """Two ranks that step every 0.5 s from `began` on; rank 0 saves for 1 s at the end of step
    number `saved_at`, counted from 1."""
    records = np.zeros(steps, dtype=STEP_DTYPE)
    records["step"] = first + np.arange(steps)
    records["seq"] = 1 + records["step"]
    records["wall_ns"] = STEP * 1e9
    records["end_ns"] = (began + STEP * (1 + np.arange(steps))) * 1e9
    records["phases"] = np.nan
    saves = () if saved_at is None else (save(began + STEP * saved_at, saved_at - 1),)
    return [
        make_rank(rank, records, attempt=number, started=began, events=saves if rank == 0 else ())
        for rank in range(2)
    ]


def save(at: float, step: int) -> Event:
    return Event("checkpoint", at, step, 1.0, float("nan"), "")


def fail(ranks: list[Rank], at: float, error: str = "ConnectionError") -> list[Rank]:
    """Rank 1 raises, and rank 0 is stopped two seconds later."""
    raised = Error(error, "the storage went away", "train.py", 7, "train", "", at)
    stopped = replace(ranks[0], state=State.DEAD, signal=15, ended=at + 2)
    return [stopped, replace(ranks[1], state=State.DEAD, exit_code=1, ended=at + 1, error=raised)]


def job(earlier: list[Rank], ranks: list[Rank], until: float) -> Case:
    return replace(make_case(ranks), earlier=tuple(earlier), observed=until)


def found(case: Case) -> Finding | None:
    findings = diagnose(case).findings
    return next((finding for finding in findings if finding.code == "restart-cost"), None)


def evidence(finding: Finding) -> dict[str, Any]:
    return {piece.measure: piece.value for piece in finding.evidence}


def restarted(*, until: float = BEGAN + 1000, saved_at: int | None = 100) -> Case:
    """120 steps until second 60, a failure at 61, and a next attempt that steps from 91 on."""
    first = fail(attempt(0, BEGAN, 120, saved_at=saved_at), BEGAN + 61)
    return job(first, attempt(1, BEGAN + 90.5, 100), until)


def test_lost_work_and_time_without_a_step_are_counted() -> None:
    finding = found(restarted())
    assert finding is not None
    assert finding.severity is Severity.INFO
    assert finding.culprits == ()
    # The save ended at 1051, the failure was at 1061, the first new step ended at 1091.
    assert evidence(finding) == {
        "time that restarts cost, at least": pytest.approx(0.04),
        "restart 1: failure to the next step": pytest.approx(30),
        "restart 1: steps after the last checkpoint": 20,
        "restart 1: work after it": pytest.approx(10),
    }
    assert finding.cost.step_fraction == pytest.approx(0.04)
    assert [fix.id for fix in finding.fixes] == [
        "save-more-often",
        "restart-faster",
        "fix-failures",
    ]
    assert finding.fixes[0].summary == "Save about every 44.7 s"  # sqrt(2 × 1 s × 1000 s)
    assert "ConnectionError" in finding.cause


def test_restarts_that_cost_much_of_the_time_are_a_warning() -> None:
    finding = found(restarted(until=BEGAN + 200))
    assert finding is not None
    assert finding.severity is Severity.WARNING
    assert finding.cost.step_fraction == pytest.approx(0.2)


def test_without_a_checkpoint_the_lost_work_is_unknown() -> None:
    finding = found(restarted(saved_at=None))
    assert finding is not None
    assert evidence(finding).keys() == {
        "time that restarts cost, at least",
        "restart 1: failure to the next step",
    }
    assert "unknown" in finding.cause
    assert finding.fixes[0].id == "save-checkpoints"


def test_an_attempt_without_a_step_lost_no_work() -> None:
    first = fail(attempt(0, BEGAN, 0), BEGAN + 5)
    restarts = find_restarts(job(first, attempt(1, BEGAN + 20, 10), BEGAN + 100))
    assert restarts is not None
    assert (restarts.restarts[0].lost_steps, restarts.lost) == (0, 0.0)
    assert restarts.down == pytest.approx(15.5)


def test_several_restarts_add_up_and_the_last_may_not_train_yet() -> None:
    first = fail(attempt(0, BEGAN, 20, saved_at=10), BEGAN + 10)
    second = fail(attempt(1, BEGAN + 20, 20, saved_at=18), BEGAN + 30)
    restarts = find_restarts(job([*first, *second], attempt(2, BEGAN + 40, 0), BEGAN + 50))
    assert restarts is not None
    assert [restart.down for restart in restarts.restarts] == pytest.approx([10.5, 20])
    assert [restart.trains for restart in restarts.restarts] == [True, False]
    assert [restart.lost_steps for restart in restarts.restarts] == [10, 2]
    assert restarts.lost == pytest.approx(4)


def test_an_attempt_that_fails_without_a_step_adds_to_the_time_without_one() -> None:
    first = fail(attempt(0, BEGAN, 20), BEGAN + 10)
    second = fail(attempt(1, BEGAN + 20, 0), BEGAN + 25)
    restarts = find_restarts(job([*first, *second], attempt(2, BEGAN + 40, 20), BEGAN + 100))
    assert restarts is not None
    assert [restart.down for restart in restarts.restarts] == pytest.approx([15, 15.5])


def test_a_node_that_vanished_failed_at_its_last_step() -> None:
    restarts = find_restarts(job(attempt(0, BEGAN, 20), attempt(1, BEGAN + 60, 20), BEGAN + 100))
    assert restarts is not None
    assert restarts.restarts[0].failed == BEGAN + 10


def on_hosts(ranks: list[Rank], *hosts: str) -> list[Rank]:
    return [replace(rank, host=host) for rank, host in zip(ranks, hosts, strict=True)]


def test_a_restart_names_the_host_that_it_replaced() -> None:
    case = restarted()
    before, after = list(case.earlier), list(case.ranks)
    names = [
        (("a", "b"), ("a", "c"), "Restart 1 replaced b with c."),
        (("a", "b"), ("a", "a"), "Restart 1 continued without b."),
        (("a", "a"), ("a", "c"), "Restart 1 added c."),
    ]
    for left, joined, said in names:
        moved = job(on_hosts(before, *left), on_hosts(after, *joined), BEGAN + 1000)
        finding = found(moved)
        assert finding is not None
        assert said in finding.cause
    of_three = [replace(rank, world_size=3) for rank in on_hosts(before, "a", "b")]
    unknown = job(of_three, on_hosts(after, "a", "c"), BEGAN + 1000)
    for same, said in ((case, ""), (unknown, "Restart 1 continued without b.")):
        finding = found(same)
        assert finding is not None
        assert ("Restart 1" in finding.cause) is bool(said)
        assert said in finding.cause


def test_what_the_launcher_said_about_a_replaced_rank_is_no_failure_now() -> None:
    case = restarted()
    ended = LoggedEnd(None, 4711, 1, None, first=True, error=None, source="torchrun")
    console = replace(case.console, ends=(ended,))
    unknown = replace(case, console=console)
    assert "failed-exception" in {one.code for one in diagnose(unknown).findings}
    known = replace(unknown, earlier=(replace(case.earlier[0], pid=4711), case.earlier[1]))
    assert "failed-exception" not in {one.code for one in diagnose(known).findings}


def test_of_a_first_step_that_is_not_on_record_the_start_counts() -> None:
    first = fail(attempt(0, BEGAN, 20), BEGAN + 10)
    restarts = find_restarts(job(first, attempt(1, BEGAN + 40, 20, first=5000), BEGAN + 100))
    assert restarts is not None
    assert restarts.down == pytest.approx(30)


def test_a_job_that_was_not_restarted_has_no_such_finding() -> None:
    ranks = attempt(0, BEGAN, 120, saved_at=100)
    assert found(job([], ranks, BEGAN + 100)) is None
    replaced = attempt(0, BEGAN - 100, 50)  # the script trained twice
    assert found(job(replaced, ranks, BEGAN + 100)) is None
