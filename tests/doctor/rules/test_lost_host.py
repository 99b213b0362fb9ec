"""host-lost: all ranks of a host are gone without a word, and so is what watched them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from mgpu_doctor.case.model import AskedHost, LostHost, Outcome, Rank, State
from mgpu_doctor.diagnosis import diagnose
from mgpu_doctor.findings import Finding, Severity
from tests.support.failure_cases import AT, dead, error, failed_job, rank, secondary_failure

CRITICAL = Severity.CRITICAL
NODE = LostHost("node-b", AT - 3)


def on(host: str, *ranks: Rank) -> list[Rank]:
    return [replace(one, host=host) for one in ranks]


def find(*ranks: Rank, **changes: Any) -> list[Finding]:
    """The findings about the end of a job that lost node-b, as they are printed."""
    case = replace(failed_job(ranks, **changes), lost_hosts=(NODE,))
    return [finding for finding in diagnose(case).findings if finding.severity is CRITICAL]


def codes(findings: Iterable[Finding]) -> list[str]:
    return [finding.code for finding in findings]


def test_all_ranks_of_the_host_are_named_and_the_others_are_victims() -> None:
    echoes = on("node-a", secondary_failure(0), secondary_failure(1))
    (finding,) = find(*echoes, *on("node-b", dead(2, at=None), dead(3, at=None)), ended=AT + 2)
    assert finding.code == "host-lost"
    assert [(one.rank, one.host) for one in finding.culprits] == [(2, "node-b"), (3, "node-b")]
    assert finding.victims == (0, 1)
    assert [piece.value for piece in finding.evidence] == [2, 5.0]


def test_a_host_is_not_lost_if_one_of_its_ranks_has_an_end() -> None:
    ranks = on("node-b", dead(1, signal=9), dead(2, at=None))
    assert codes(find(*on("node-a", secondary_failure(0)), *ranks)) == ["failed-killed"]


def test_a_rank_of_another_host_that_failed_by_itself_comes_first() -> None:
    own = on("node-a", dead(0, at=AT - 5, exit_code=1, error=error()))
    (finding,) = find(*own, *on("node-b", dead(1, at=None)))
    assert finding.code == "failed-exception"
    assert [culprit.rank for culprit in finding.culprits] == [0]


def test_a_job_that_completed_lost_no_host() -> None:
    ended = [rank(number, state=State.EXITED, exit_code=0) for number in (0, 1)]
    ranks = [*on("node-a", ended[0]), *on("node-b", ended[1])]
    assert "host-lost" not in codes(find(*ranks, outcome=Outcome.COMPLETED, exit_code=0))


GONE = AskedHost("node-c", None, "ssh fails with 'No route to host'", silent=True)


def find_silent(
    *ranks: Rank, hosts: Sequence[AskedHost] = (GONE,), world: int = 3
) -> list[Finding]:
    """The same of a job that has nothing of these hosts."""
    sized = [replace(one, world_size=world) for one in ranks]
    case = failed_job(sized)
    case = replace(case, job=replace(case.job, world_size=world), asked_hosts=tuple(hosts))
    return [finding for finding in diagnose(case).findings if finding.severity is CRITICAL]


def test_a_host_of_which_nothing_is_recorded_is_named_if_nothing_answers_there() -> None:
    ranks = on("node-a", secondary_failure(0)) + on("node-b", secondary_failure(1))
    (finding,) = find_silent(*ranks)
    assert finding.code == "host-lost"
    assert [(one.rank, one.host) for one in finding.culprits] == [(None, "node-c")]
    assert finding.victims == (0, 1)
    assert [piece.value for piece in finding.evidence][:2] == [1, GONE.trouble]


def test_of_as_many_hosts_on_both_sides_either_may_have_been_cut_off() -> None:
    ranks = on("node-a", secondary_failure(0)) + on("node-b", secondary_failure(1))
    gone = [GONE, replace(GONE, name="node-d")]
    (finding,) = find_silent(*ranks, hosts=gone, world=4)
    assert [one.host for one in finding.culprits] == ["node-c", "node-d"]
    assert "or the others were." in finding.cause
    (fewer,) = find_silent(*ranks)
    assert "or the others were" not in fewer.cause


@pytest.mark.parametrize(
    "changes",
    [
        {"hosts": [replace(GONE, silent=False)]},  # it answers, or refuses the key
        {"hosts": [GONE, AskedHost("node-d", None, "Permission denied")], "world": 4},
        {"world": 4},  # yet another host, whose name is not known
        {
            "hosts": [replace(GONE, name=name) for name in "cde"],
            "world": 5,
        },  # or a and b are cut off
        {"hosts": []},
    ],
)
def test_a_host_that_may_not_be_the_cause_is_not_named(changes: dict[str, Any]) -> None:
    ranks = on("node-a", secondary_failure(0)) + on("node-b", secondary_failure(1))
    findings = find_silent(*ranks, **changes)
    assert codes(findings) == ["failed-exception"]
    assert findings[0].culprits == ()
    assert "Not in this recording: rank" in findings[0].cause


def test_a_rank_that_failed_by_itself_comes_before_a_silent_host() -> None:
    own = on("node-b", dead(1, at=AT - 5, exit_code=1, error=error()))
    assert codes(find_silent(*on("node-a", secondary_failure(0)), *own)) == ["failed-exception"]
