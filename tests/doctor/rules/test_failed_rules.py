"""Which rank failed first, and how it is reported."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mgpu_doctor.case.host_samples import HostSample
from mgpu_doctor.case.model import Console, Event, Now, Outcome, ProcessEnd, Rank, State
from mgpu_doctor.rules.failures.failure_text import headline
from tests.support.failure_cases import (
    AT,
    dead,
    error,
    failed_job,
    find,
    logged_end,
    lost_peer,
    rank,
    secondary_failure,
    step_records,
    terminated,
)


def test_the_killed_rank_is_named_not_the_one_that_the_launcher_blames() -> None:
    console = Console(ends=(logged_end(rank=0, exit_code=1, first=True),))
    case = failed_job([secondary_failure(0), dead(1, signal=9), terminated(2)], console=console)
    (finding,) = find(case)
    assert finding.code == "failed-killed"
    assert [culprit.rank for culprit in finding.culprits] == [1]
    assert finding.victims == (0, 2)
    assert finding.confidence > 0.9
    assert finding.since_step == 41
    assert "SIGKILL" in finding.title


def test_an_exception_is_reported_with_its_place_and_message() -> None:
    (finding,) = find(
        failed_job([secondary_failure(0), dead(1), dead(2, exit_code=1, error=error())])
    )
    assert finding.code == "failed-exception"
    assert [culprit.rank for culprit in finding.culprits] == [2]
    assert "ValueError at train.py:87: bad sample" in finding.title
    assert finding.confidence == 0.99
    assert any(e.where == "/home/u/train.py:87" for e in finding.evidence)
    assert any(e.value == "main train.py:9 → step train.py:87" for e in finding.evidence)


def test_the_earlier_of_two_own_exceptions_is_the_culprit() -> None:
    late = replace(error("KeyError", "x", 5), at=AT + 0.3)
    early = replace(error(), at=AT)
    ranks = [dead(0, exit_code=1, error=late), dead(1, exit_code=1, error=early)]
    (finding,) = find(failed_job(ranks))
    assert [culprit.rank for culprit in finding.culprits] == [1]
    assert finding.victims == (0,)


def test_the_same_exception_on_every_rank_has_all_of_them_as_culprits() -> None:
    ranks = [dead(n, AT + n, exit_code=1, error=error()) for n in range(3)]
    (finding,) = find(failed_job(ranks))
    assert [culprit.rank for culprit in finding.culprits] == [0, 1, 2]
    assert finding.victims == ()
    assert finding.title.startswith("Every rank raised")


@pytest.mark.parametrize(("number", "name"), [(11, "SIGSEGV"), (7, "SIGBUS"), (6, "SIGABRT")])
def test_a_crash_is_reported_with_what_it_usually_means(number: int, name: str) -> None:
    (finding,) = find(
        failed_job([secondary_failure(0), secondary_failure(1), dead(2, signal=number)])
    )
    assert finding.code == "failed-signal"
    assert [culprit.rank for culprit in finding.culprits] == [2]
    assert name in finding.title
    assert "usually" in finding.cause or "failed check" in finding.cause
    assert any("PYTHONFAULTHANDLER=1 torchrun train.py" in fix.how for fix in finding.fixes)


def test_an_abort_after_an_own_exception_is_that_exception() -> None:
    (finding,) = find(failed_job([secondary_failure(0), dead(1, signal=6, error=error())]))
    assert finding.code == "failed-exception"


def test_an_own_exception_counts_where_the_launcher_ended_the_rank_before_it_was_through() -> None:
    slow_to_leave = dead(1, AT + 3, signal=15, error=replace(error(), at=AT - 1))
    (finding,) = find(failed_job([secondary_failure(0), slow_to_leave]))
    assert finding.code == "failed-exception"
    assert [culprit.rank for culprit in finding.culprits] == [1]


def test_an_abort_after_a_lost_connection_is_an_echo() -> None:
    victim = replace(secondary_failure(0, AT - 0.01), exit_code=None, signal=6)
    (finding,) = find(failed_job([victim, dead(1, signal=9)]))
    assert [culprit.rank for culprit in finding.culprits] == [1]


@pytest.mark.parametrize(
    "changes", [{"exit_code": 3}, {"exit_code": 3, "signal": 6}], ids=["plain", "abort at shutdown"]
)
def test_sys_exit_with_a_code_is_a_failure(changes: dict[str, int]) -> None:
    (finding,) = find(failed_job([secondary_failure(0), dead(1, **changes)]))
    assert finding.code == "failed-exception"
    assert [culprit.rank for culprit in finding.culprits] == [1]
    assert "exit code 3" in finding.title


def test_the_sentence_of_sys_exit_is_reported_with_its_place() -> None:
    said = replace(error("SystemExit", "no such data set: numbers"), traceback="")
    (finding,) = find(failed_job([secondary_failure(0), dead(1, exit_code=1, error=said)]))
    assert "ended itself with exit code 1" in finding.title
    assert finding.title.endswith(f"at train.py:{said.line}: no such data set: numbers")
    assert [culprit.rank for culprit in finding.culprits] == [1]
    assert (finding.evidence[0].measure, finding.evidence[0].source) == ("sys.exit", "black box")
    assert [fix.id for fix in finding.fixes] == ["fix-the-line"]


def test_who_ends_without_a_word_is_reported_with_what_was_printed_before_others_failed() -> None:
    tail = ("step 41", "no such data set: numbers", "[rank0]: Traceback", "[rank0]: RuntimeError")
    case = failed_job([secondary_failure(0), dead(1, exit_code=1)], console=Console(tail=tail))
    (finding,) = find(replace(case, job=replace(case.job, launcher="torchrun")))
    printed = [item.value for item in finding.evidence if item.measure.startswith("last lines")]
    assert printed == ["step 41\nno such data set: numbers"]
    assert "@record" not in finding.fixes[0].how  # an exception would be known


def test_a_command_that_ends_before_any_rank_is_reported_with_its_last_words() -> None:
    console = Console(tail=("loading", "tf-tpu needs a TPU: none is here"))
    (finding,) = find(failed_job([], console=console))
    assert finding.title.endswith("before any rank existed")
    assert finding.cause.endswith("The last line that it printed: tf-tpu needs a TPU: none is here")


@pytest.mark.parametrize(
    ("number", "before", "code"),
    [
        (9, 0.1, "failed-killed"),
        (11, 30.0, "failed-killed"),
        (13, 0.1, "failed-exception"),  # of a shell's pipe
        (9, -0.1, "failed-exception"),  # after the ranks
        (9, 900.0, "failed-exception"),  # long before: no connection was lost by it
    ],
)
def test_a_server_that_is_no_rank_and_was_killed_before_the_ranks_fell_is_reported(
    number: int, before: float, code: str
) -> None:
    case = failed_job([secondary_failure(0), secondary_failure(1)])
    first = min(rank.ended or AT for rank in case.ranks)
    case = replace(case, ends=(*case.ends, ProcessEnd(4321, None, number, first - before)))
    (finding,) = find(case)
    assert finding.code == code
    assert [culprit.pid for culprit in finding.culprits] == (
        [4321] if code == "failed-killed" else []
    )
    assert finding.victims == (0, 1)


def test_a_job_that_ends_helpers_by_sigkill_has_outlived_such_ends() -> None:
    case = failed_job([secondary_failure(0), secondary_failure(1)])
    first = min(rank.ended or AT for rank in case.ranks)
    helpers = [ProcessEnd(4321 + ago, None, 9, first - ago) for ago in (5, 100, 200)]
    (finding,) = find(replace(case, ends=(*case.ends, *helpers)))
    assert (finding.code, finding.culprits) == ("failed-exception", ())


@pytest.mark.parametrize(("code", "expected"), [(137, "failed-killed"), (139, "failed-signal")])
def test_a_shells_code_tells_of_the_signal(code: int, expected: str) -> None:
    (finding,) = find(failed_job([secondary_failure(0), dead(1, exit_code=code)]))
    assert finding.code == expected


def test_memory_that_was_full_points_to_the_oom_killer() -> None:
    case = failed_job([secondary_failure(0), dead(1, signal=9)])
    full = replace(case, host_samples=(_memory(AT - 5, 0.98),))
    (finding,) = find(full)
    assert "98 %" in finding.cause
    (plain,) = find(replace(case, host_samples=(_memory(AT - 5, 0.5), _memory(AT - 900, 0.99))))
    assert "%" not in plain.cause


def _memory(at: float, share: float) -> HostSample:
    total = 1 << 40
    return HostSample(at, None, None, None, int(share * total), total)


def test_a_rank_that_vanished_is_reported_with_little_confidence() -> None:
    (finding,) = find(failed_job([secondary_failure(0), dead(1, None)]))
    assert finding.code == "failed-killed"
    assert [culprit.rank for culprit in finding.culprits] == [1]
    assert finding.confidence <= 0.6
    assert "for an unknown reason" in finding.title


def test_a_vanished_rank_of_a_live_job_is_not_yet_judged() -> None:
    ranks = [rank(0), dead(1, None)]
    assert find(failed_job(ranks, outcome=Outcome.RUNNING, exit_code=None)) == []


def test_two_ranks_that_the_same_signal_killed_at_once_are_both_culprits() -> None:
    ranks = [dead(0, AT, signal=9), dead(1, AT + 0.2, signal=9), dead(2, AT + 30, signal=9)]
    (finding,) = find(failed_job(ranks))
    assert [culprit.rank for culprit in finding.culprits] == [0, 1], "the last was the launcher's"
    assert finding.victims == (2,)


def test_a_script_that_dies_at_import_has_every_rank_as_culprit() -> None:
    missing = error("ModuleNotFoundError", "No module named 'x'", 3)
    ends = [logged_end(rank=n, pid=n + 10, signal=15) for n in (0, 3)]
    ends += [logged_end(rank=n, pid=n + 10, exit_code=1, first=n == 1) for n in (1, 2)]
    ends += [logged_end(error=missing, source="traceback")] * 4
    (finding,) = find(failed_job([], console=Console(ends=tuple(ends))))
    assert finding.code == "failed-exception"
    assert finding.title.startswith("Every rank raised ModuleNotFoundError at train.py:3")
    assert [culprit.rank for culprit in finding.culprits] == [None]
    assert finding.victims == ()
    assert finding.confidence == 0.8


def test_one_unlabelled_traceback_belongs_to_the_rank_of_the_summary() -> None:
    ends = (
        logged_end(rank=1, pid=11, exit_code=1, first=True),
        logged_end(rank=0, pid=10, signal=15),
        logged_end(error=error(), source="traceback"),
    )
    (finding,) = find(failed_job([], console=Console(ends=ends)))
    assert [culprit.rank for culprit in finding.culprits] == [1]
    assert "train.py:87" in finding.title


def test_the_consoles_tales_of_one_rank_are_one_end() -> None:
    ends = (
        logged_end(rank=1, pid=11, exit_code=1, first=True),
        logged_end(rank=1, error=error(), source="traceback"),
        logged_end(rank=0, pid=10, signal=15),
        logged_end(rank=0, error=lost_peer(), source="traceback"),
    )
    (finding,) = find(failed_job([], console=Console(ends=ends)))
    assert [culprit.rank for culprit in finding.culprits] == [1]
    assert [culprit.pid for culprit in finding.culprits] == [11]
    assert "train.py:87" in finding.title


def test_a_printed_traceback_of_a_healthy_rank_blames_nobody() -> None:
    console = Console(
        ends=(logged_end(error=error("OSError", "caught", 5), source="traceback"),) * 2
    )
    (finding,) = find(failed_job([secondary_failure(0), dead(1, signal=9)], console=console))
    assert finding.code == "failed-killed"


def test_a_command_that_ends_before_any_rank_is_reported() -> None:
    console = Console(tail=("bash: torchrunn: command not found",))
    (finding,) = find(failed_job([], exit_code=127, console=console))
    assert finding.culprits == ()
    assert "127" in finding.title
    assert any("not found" in str(e.value) for e in finding.evidence)


def test_connections_lost_on_all_ranks_blame_none_of_them() -> None:
    (finding,) = find(
        failed_job([secondary_failure(0), secondary_failure(1), secondary_failure(2)])
    )
    assert finding.culprits == ()
    assert finding.victims == (0, 1, 2)
    assert finding.confidence < 0.5


def gone(number: int, since: float, **changes: int | None) -> Rank:
    """A rank that ended by itself after it had last done something at that moment."""
    known = {"exit_code": 0, **changes}
    now = Now("other", since, 41, None, 99)
    return rank(number, state=State.EXITED, ended=AT + 2, now=now, **known)


def test_who_left_cleanly_before_the_others_lost_their_connection_is_named() -> None:
    (finding,) = find(
        failed_job([secondary_failure(0, AT + 1), gone(1, AT), terminated(2, AT + 2)])
    )
    assert finding.code == "failed-exception"
    assert [culprit.rank for culprit in finding.culprits] == [1]
    assert finding.victims == (0, 2)
    assert "Join" in finding.fixes[0].how


def left(since: float, group_seq: int = 41, **changes: Any) -> Rank:
    """Rank 1 once it has destroyed its process group, SIGTERMed before its process was gone."""
    parted = Event("left", since, 41, 0.0, math.nan, "")
    now = Now("other", since - 0.1, 41, None, group_seq)
    return dead(1, AT + 3, signal=15, now=now, events=(parted,), **changes)


def in_collective(at: float) -> Rank:
    return replace(secondary_failure(0, at), now=Now("other", at, 41, None, 42))


def test_who_left_cleanly_and_was_then_ended_by_the_launcher_is_named() -> None:
    (finding,) = find(failed_job([in_collective(AT + 1), left(AT), terminated(2, AT + 2)]))
    assert "ended normally" in finding.title
    assert [culprit.rank for culprit in finding.culprits] == [1]
    assert finding.victims == (0, 2)
    assert "had left its process group" in str(finding.evidence[0].value)


def test_a_rank_that_shut_down_cleanly_is_named_if_its_exit_code_is_unknown() -> None:
    unseen = replace(left(AT), state=State.EXITED, signal=None)
    (finding,) = find(failed_job([in_collective(AT + 1), unseen, terminated(2, AT + 2)]))
    assert [culprit.rank for culprit in finding.culprits] == [1]
    assert "its exit code is unknown" in str(finding.evidence[0].value)


@pytest.mark.parametrize(
    "parted", [left(AT + 2), left(AT, group_seq=42)], ids=["later", "from the same collective"]
)
def test_who_left_because_its_connection_was_lost_is_not_blamed(parted: Rank) -> None:
    findings = find(failed_job([in_collective(AT + 1), parted, terminated(2, AT + 2)]))
    assert not [one for one in findings if "ended normally" in one.title]


def test_who_left_after_a_collective_that_a_finished_step_of_the_others_holds_is_named() -> None:
    """What broke is one of DDP's own, which nobody sees begin."""
    steps = step_records()
    steps["group_seq"] = 2 + np.arange(len(steps))  # the last: 42
    broken = replace(in_collective(AT + 1), steps=steps)
    (found,) = find(failed_job([broken, left(AT, group_seq=42), terminated(2, AT + 2)]))
    assert [culprit.rank for culprit in found.culprits] == [1]
    found = find(failed_job([broken, left(AT, group_seq=43), terminated(2, AT + 2)])).pop()
    assert "ended normally" not in found.title


@pytest.mark.parametrize(
    "ranks",
    [
        [secondary_failure(0, AT), gone(1, AT + 0.1)],
        [secondary_failure(0, AT), gone(1, AT - 1, exit_code=None)],
        [secondary_failure(0, AT), gone(1, AT - 1), dead(2, AT + 1, exit_code=1)],
        [secondary_failure(0, AT), rank(1, state=State.EXITED, exit_code=0)],
    ],
    ids=["later", "code unknown", "another fell by itself", "nothing known"],
)
def test_who_left_later_or_nobody_knows_how_is_not_blamed(ranks: list[Rank]) -> None:
    findings = find(failed_job(ranks))
    assert not [one for one in findings if "ended normally" in one.title]


def test_a_lone_sigterm_before_all_others_names_its_rank() -> None:
    (finding,) = find(
        failed_job(
            [secondary_failure(0, AT + 0.5), dead(1, AT, signal=15), secondary_failure(2, AT + 0.5)]
        )
    )
    assert finding.code == "failed-killed"
    assert [culprit.rank for culprit in finding.culprits] == [1]
    assert "SIGTERM" in finding.title


def test_who_had_lost_the_others_already_was_not_killed_by_a_late_sigterm() -> None:
    ended_on_the_way_out = replace(secondary_failure(1, AT), exit_code=None, signal=15)
    findings = find(failed_job([secondary_failure(0, AT + 0.5), ended_on_the_way_out]))
    assert "failed-killed" not in [one.code for one in findings]


@pytest.mark.parametrize("number", [2, 9, 15])
def test_a_job_that_was_ended_as_a_whole_blames_nobody(number: int) -> None:
    ranks = [dead(n, AT + n / 100, signal=number) for n in range(4)]
    assert find(failed_job(ranks, outcome=Outcome.KILLED, exit_code=None, signal=number)) == []


def test_healthy_jobs_are_silent() -> None:
    left = [rank(n, state=State.EXITED, exit_code=0, ended=AT) for n in range(4)]
    assert find(failed_job(left, outcome=Outcome.COMPLETED, exit_code=0)) == []
    assert find(failed_job([rank(0), rank(1)], outcome=Outcome.RUNNING, exit_code=None)) == []


def test_a_long_message_is_seen_to_be_cut() -> None:
    assert headline(error("RuntimeError", "x" * 300)).endswith("x…")
    assert not headline(error("RuntimeError", "x" * 160)).endswith("…")


@pytest.mark.parametrize(("ago", "reported"), [(59.0, True), (61.0, False), (-1.0, False)])
def test_a_helper_was_killed_within_a_minute_before_the_first_rank_failed(
    ago: float, reported: bool
) -> None:
    """Ranks notice it at AT and at AT + 5."""
    case = failed_job([secondary_failure(0, AT), secondary_failure(1, AT + 5)])
    case = replace(
        case,
        ranks=tuple(
            replace(rank, error=replace(rank.error, at=rank.ended)) if rank.error else rank
            for rank in case.ranks
        ),
    )
    case = replace(case, ends=(*case.ends, ProcessEnd(4321, None, 9, AT - ago)))
    (finding,) = find(case)
    assert [culprit.pid for culprit in finding.culprits] == [4321] * reported
