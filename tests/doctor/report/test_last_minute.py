"""The last minute before the end, rank by rank: which stopped first, where, and with what error."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from mgpu_doctor.analysis.postmortem.failure_order import find_first_failures, find_latest_end
from mgpu_doctor.analysis.postmortem.rank_failures import find_rank_failures
from mgpu_doctor.case.host_samples import HostSample
from mgpu_doctor.case.model import Case, Console, Error, Job, Now, Outcome, Rank, State, Subject
from mgpu_doctor.case.placeholders import blank_rank
from mgpu_doctor.findings import Diagnosis, Finding, FirstFailure, RankSummary, Severity
from mgpu_doctor.recording.box import STEP_DTYPE
from mgpu_doctor.report import html, markdown
from mgpu_doctor.report.event_timeline import newest_events
from mgpu_doctor.report.html.sections import MOST_RANKS
from mgpu_doctor.report.last_minute import (
    LINES,
    UNLABELLED_LINES,
    cells,
    describe_first_stop,
    find_last_minute,
)
from mgpu_doctor.report.rank_rows import rows
from tests.support import diagnoses

START = 1_790_000_000.0
END = START + 300.0
PRINTED = ("[rank2]: segmentation fault", "epoch 3", "[rank0]: lost a peer")


def rank(number: int, stopped: float, state: State = State.DEAD, **changes: Any) -> Rank:
    """It ended, or stands since, so many seconds before the end."""
    steps = np.zeros(200, dtype=STEP_DTYPE)
    steps["step"] = np.arange(200)
    steps["wall_ns"] = 10**9
    steps["end_ns"] = (END - stopped - 199 + np.arange(200)) * 1e9
    steps["device_bytes"] = 3 << 30
    facts: dict[str, Any] = {
        "rank": number,
        "pid": 4000 + number,
        "host": "node-a",
        "state": state,
        "started": START,
        "steps": steps,
        "now": Now("wait", END - stopped, 200, "all_reduce train.py:87", 200),
        "ended": END - stopped if state is State.DEAD else None,
    }
    return blank_rank(**{**facts, **changes})


def diagnosis(
    *ranks: Rank, outcome: Outcome = Outcome.FAILED, printed: tuple[str, ...] = PRINTED
) -> Diagnosis:
    job = Job(
        "job", ("train.py",), "/home/someone/project", "torch", "ddp", "torchrun", len(ranks),
        ("node-a",), START, None if outcome is Outcome.HUNG else END, outcome, 1, None, None,
    )  # fmt: skip
    samples = (HostSample(END - 2, 50.0, 2, None, 1, 4, {4000: (1.0, 2 << 30)}, host="node-a"),)
    case = Case(
        Subject("recording", "/nowhere"), job, END, ranks, console=Console(printed),
        host_samples=samples,
    )  # fmt: skip
    summaries = tuple(
        RankSummary(
            rank.rank, rank.host, rank.pid, None,
            "hung" if outcome is Outcome.HUNG else rank.state.value,
            rank.exit_code, rank.signal, 199, 1.0, {}, "all_reduce train.py:87",
        )
        for rank in ranks
    )  # fmt: skip
    first = find_first_failures(find_rank_failures(case), case)
    return Diagnosis(
        case, summaries, None, None, (), (),
        first_failures=tuple(
            FirstFailure(one.rank, one.pid, find_latest_end(one, case)) for one in first
        ),
    )  # fmt: skip


KILLED = diagnosis(
    rank(0, 1.0, signal=15), rank(1, 0.5, signal=15), rank(2, 41.0, signal=11, exit_code=None)
)
HUNG = diagnosis(rank(0, 30.0, State.WAITING), rank(1, 90.0, State.WAITING), outcome=Outcome.HUNG)


def test_who_fell_first_comes_first() -> None:
    known = find_last_minute(KILLED)
    assert known is not None
    assert [(stop.rank, stop.first) for stop in known.stops] == [(2, True), (0, False), (1, False)]
    assert describe_first_stop(known) == "Rank 2 failed first (SIGSEGV), 41 s before the end."


def test_no_end_is_reported_after_what_came_of_it() -> None:
    """That a killed process is gone is seen when its memory is taken down; others lose their
    connection before."""
    lost = Error("RuntimeError", "Connection closed by peer", "c.py", 3, None, "", END - 3)
    made = diagnosis(
        rank(0, 3.1, signal=15, error=lost, ended=END - 1), rank(1, 2.4, signal=9), printed=()
    )
    known = find_last_minute(made)
    assert known is not None
    assert describe_first_stop(known) == "Rank 1 failed first (SIGKILL), 3 s before the end."
    happened = [
        (event.who, event.at) for event in newest_events(made, 9).events if event.at is not None
    ]
    assert ("rank 1", END - 3) in happened
    assert [who for who, at in happened if END - 4 < at < END] == ["rank 1", "rank 0", "rank 0"]
    early = diagnosis(rank(0, 30, error=replace(lost, at=END - 20)), rank(1, 2.4, signal=9))
    assert early.latest_ends == {(1, 4001): END - 2.4}, "that did not come of it"


def test_what_is_dead_and_still_listed_holds_nothing() -> None:
    last = structs.replace(KILLED.case.host_samples[0], at=END - 1, processes={4000: (1.0, 0)})
    case = replace(KILLED.case, host_samples=(*KILLED.case.host_samples, last))
    known = find_last_minute(replace(KILLED, case=case))
    assert known is not None
    assert {stop.rank: stop.resident for stop in known.stops}[0] == 2 << 30


def test_a_rank_that_left_with_a_code_is_reported_so() -> None:
    known = find_last_minute(diagnosis(rank(0, 1.0, exit_code=3), printed=()))
    assert known is not None
    assert describe_first_stop(known) == "Rank 0 failed first (exit code 3), 1 s before the end."


def test_what_is_known_of_a_rank() -> None:
    known = find_last_minute(KILLED)
    assert known is not None
    assert cells(known.stops[1], several=False) == (
        "0",
        "SIGTERM",
        "1 s before the end",
        "up to 199; the last took 1 s, usually 1 s; 59 in the last minute",
        "all_reduce train.py:87, for 1 s",
        "3 GiB on the device, 2 GiB resident",
    )
    assert cells(known.stops[2], several=True)[0] == "1 node-a"
    assert cells(known.stops[2], several=False)[5] == "3 GiB on the device"


def test_of_a_hang_the_first_to_stand_is_reported_and_not_blamed() -> None:
    known = find_last_minute(HUNG)
    assert known is not None
    assert [one.rank for one in known.first] == [1]
    assert describe_first_stop(known).startswith(
        "The first rank to stop was rank 1, 1 min 30 s before the end;"
    )
    assert "not necessarily the culprit" in describe_first_stop(known)
    assert [stop.steps for stop in known.stops] == [0, 30]


def test_ranks_that_come_to_stand_together_have_no_first() -> None:
    ranks = [rank(number, 30.0 + 0.1 * number, State.WAITING) for number in range(2)]
    known = find_last_minute(diagnosis(*ranks, outcome=Outcome.HUNG))
    assert known is not None
    assert known.first == ()
    assert describe_first_stop(known) == "Which rank stopped first is unknown."


def test_a_job_that_ended_well_or_goes_on_has_none() -> None:
    for outcome in (Outcome.COMPLETED, Outcome.RUNNING):
        assert find_last_minute(diagnosis(rank(0, 1.0), outcome=outcome)) is None
    nothing = blank_rank(rank=0, pid=1, host="node-a", state=State.DEAD)
    assert find_last_minute(diagnosis(nothing)) is None, "nobody knows when it stopped"


def test_what_was_printed_belongs_to_its_rank_or_to_nobody() -> None:
    known = find_last_minute(KILLED)
    assert known is not None
    assert {stop.rank: stop.printed for stop in known.stops} == {
        0: PRINTED[2:],
        1: (),
        2: PRINTED[:1],
    }
    assert known.printed == ("epoch 3",)
    flood = diagnosis(*KILLED.case.ranks, printed=("[rank0]: x", "y") * 500)
    known = find_last_minute(flood)
    assert known is not None
    assert len(known.stops[1].printed) == LINES
    assert len(known.printed) == UNLABELLED_LINES


def test_of_very_many_ranks_the_first_is_shown() -> None:
    many = [rank(number, 1.0 + 0.001 * number, signal=15) for number in range(4 * MOST_RANKS)]
    many[70] = rank(70, 0.5, signal=9)
    page = html.render(diagnosis(*many))
    assert "Rank 70 failed first (SIGKILL)" in page
    assert f"{4 * MOST_RANKS - MOST_RANKS} more ranks" in page


@pytest.mark.parametrize("redact", [True, False])
def test_both_reports_tell_it_and_hide_names_when_asked(redact: bool) -> None:
    secret = replace(
        KILLED,
        case=replace(KILLED.case, console=Console(("at /home/someone/project/x on node-a",))),
    )
    for told_ in (html.render(secret, redact=redact), markdown.render(secret, redact=redact)):
        assert "The last minute" in told_
        assert "What happened" in told_
        assert ("someone" not in told_) is redact
        assert ("node-a" not in told_) is redact


def test_printed_lines_are_only_text() -> None:
    hostile = diagnosis(*KILLED.case.ranks, printed=(f"[rank2]: {diagnoses.HOSTILE}",) * 9)
    page, ticket = html.render(hostile), markdown.render(hostile)
    assert page.count("<script") == 1, "the page's own"
    assert "\x1b" not in page + ticket
    assert "<script" not in re.sub(r"(`{3,}).*?\n\1", "", ticket, flags=re.DOTALL)


def test_no_phase_at_all_is_said_to_be_none() -> None:
    known = find_last_minute(KILLED)
    assert known is not None
    nowhere = replace(known.stops[0], where="other", blocked=3.0)
    assert "in no known phase, for 3 s" in cells(nowhere, several=False)
    assert all("other" not in (row.where or "") for row in rows(_standing("other"), 8))
    assert any(row.where == "all_reduce" for row in rows(_standing("all_reduce"), 8))


def _standing(where: str) -> Diagnosis:
    stopped = Finding("failed-killed", Severity.CRITICAL, 0.9, "it ended", "somebody ended it")
    ranks = tuple(replace(rank, where=where) for rank in KILLED.ranks)
    return replace(KILLED, ranks=ranks, findings=(stopped,))
