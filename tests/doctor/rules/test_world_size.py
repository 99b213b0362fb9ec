"""More ranks were requested than started: the number is wrong, no rank is blamed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mgpu_doctor.case.model import Case, Outcome, State
from mgpu_doctor.case.outcomes import with_missing
from mgpu_doctor.diagnosis import folded
from mgpu_doctor.findings import Evidence, Finding, Severity
from mgpu_doctor.rules.failures.failed_rendezvous import RULES
from tests.support.ending_records import failure_findings
from tests.support.failure_cases import AT, dead, error, failed_job, rank

VAIN = replace(
    error("torch.distributed.DistStoreError", "wait timeout after 4000ms, keys: /0//cpu//0/2"),
    at=AT,
)


def waited(local: int | None, *, launcher: str = "torchrun") -> Case:
    """Ranks 0 and 1 waited for rank 2 in vain."""
    birth: dict[str, Any] = {"launcher": launcher, "local_world_size": local}
    there = [dead(n, exit_code=1, error=VAIN, birth=birth) for n in range(2)]
    absent = rank(2, state=State.MISSING, pid=None, birth={})
    return failed_job([*there, absent], launcher=launcher)


def test_a_launcher_that_started_all_it_was_told_to_is_not_to_blame() -> None:
    (finding,) = failure_findings(waited(local=2))
    assert finding.code == "failed-world-size"
    assert finding.title == "The process group waited for 3 ranks, and torchrun started 2"
    assert [(culprit.rank, culprit.pid) for culprit in finding.culprits] == [(2, None)]
    assert finding.victims == (0, 1)
    assert finding.evidence[0] == Evidence(
        "ranks of the process group", 3, "ranks", 2, "black boxes"
    )


@pytest.mark.parametrize("local", [3, None])
def test_a_rank_that_was_meant_to_come_is_missing(local: int | None) -> None:
    (finding,) = failure_findings(waited(local))
    assert finding.code == "failed-rendezvous"
    assert [culprit.rank for culprit in finding.culprits] == [2]


def test_healthy_jobs_are_silent() -> None:
    done = failed_job([rank(0), rank(1)], outcome=Outcome.COMPLETED, exit_code=0)
    assert failure_findings(done) == []


@pytest.mark.parametrize(
    ("command", "missing"),
    [
        (("torchrun", "--standalone", "--nproc-per-node", "2", "train.py"), [2]),
        (("torchrun", "--nnodes", "2", "--nproc-per-node", "2", "train.py"), []),
        (("torchrun", "--nproc-per-node", "2", "train.py"), []),  # PET_NNODES may say otherwise
    ],
)
def test_who_is_missing_where_the_launcher_has_one_host(
    command: tuple[str, ...], missing: list[int]
) -> None:
    ranks = [rank(n, world_size=3, birth={"local_world_size": 2}) for n in range(2)]
    found = with_missing(ranks, command)
    assert [one.rank for one in found if one.state is State.MISSING] == missing


def test_a_finding_that_names_nobody_gives_way_to_one_that_does() -> None:
    vague = Finding("failed-rendezvous", Severity.CRITICAL, 0.4, "nobody came", "")
    (named,) = failure_findings(waited(local=2))
    assert folded([vague, named], RULES) == [named]
    assert folded([vague], RULES) == [vague]
    told = replace(vague, severity=Severity.INFO)
    assert folded([told, named], RULES) == [told, named]
