"""host-lost: all ranks of a host are gone without a word, and so is what watched them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from mgpu_doctor.case.model import LostHost, Outcome, Rank, State
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
