"""failed-rendezvous: ranks that never joined; ranks that timed out waiting for them are not
blamed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec import structs

from mgpu_doctor.case.model import AskedHost, Console, Event, Rank, State
from mgpu_doctor.case.process_metadata import UNKNOWN
from mgpu_doctor.diagnosis import diagnose
from mgpu_doctor.recording.box import STEP_DTYPE
from tests.support.failure_cases import AT, dead, error, failed_job, find, logged_end, rank
from tests.support.frames import HOST
from tests.support.synthetic import make_case, make_rank

GAVE_UP = (
    "wait timeout after 5000ms, keys: /default_pg/0//cpu//0/1",
    "Timed out after 61 seconds waiting for clients. 1/2 clients joined.",
    "Gloo connectFullMesh failed with timed out connecting",
)


def waiter(number: int, message: str = GAVE_UP[0]) -> Rank:
    raised = replace(error("torch.distributed.DistStoreError", message, 21), at=AT)
    return dead(number, exit_code=1, error=raised)


def absent(number: int) -> Rank:
    return rank(number, state=State.MISSING, pid=None)


@pytest.mark.parametrize("message", GAVE_UP)
def test_the_rank_that_never_joined_is_named_not_the_one_that_waited(message: str) -> None:
    console = Console(ends=(logged_end(rank=1, pid=77, signal=15),))
    (finding,) = find(failed_job([waiter(0, message), absent(1)], console=console))
    assert finding.code == "failed-rendezvous"
    assert [(culprit.rank, culprit.pid) for culprit in finding.culprits] == [(1, 77)]
    assert finding.victims == (0,)
    assert finding.confidence == 0.9


def test_without_a_word_of_the_missing_rank_the_confidence_is_lower() -> None:
    (finding,) = find(failed_job([waiter(0), waiter(1), absent(2), absent(3)]))
    assert [culprit.rank for culprit in finding.culprits] == [2, 3]
    assert finding.confidence < 0.9


def test_where_all_joined_nobody_is_named() -> None:
    (finding,) = find(failed_job([waiter(0), waiter(1)]))
    assert finding.code == "failed-exception"
    assert finding.culprits == ()


def test_a_rank_that_fell_by_itself_explains_why_the_others_waited() -> None:
    (finding,) = find(failed_job([waiter(0), dead(1, exit_code=1, error=error())]))
    assert finding.code == "failed-exception"
    assert [culprit.rank for culprit in finding.culprits] == [1]


def test_a_named_host_without_ranks_is_named_instead_of_its_ranks() -> None:
    here, gone = AskedHost("a", "node"), AskedHost("c", None, "ssh fails with 'refused'")
    case = failed_job([waiter(0), waiter(1)])
    case = replace(case, job=replace(case.job, world_size=4), asked_hosts=(here, gone))
    (finding,) = find(case)
    assert finding.code == "failed-rendezvous"
    assert finding.title.startswith("Host c never joined")
    assert [(culprit.rank, culprit.host) for culprit in finding.culprits] == [(None, "c")]
    assert finding.victims == (0, 1)
    assert "ssh fails with 'refused'" in finding.cause
    complete = replace(case, job=replace(case.job, world_size=2))
    assert [one.code for one in find(complete)] == ["failed-exception"]


def test_a_named_host_is_not_to_blame_for_a_rank_that_another_host_lacks() -> None:
    asked = tuple(AskedHost(name, name) for name in "abc")

    def name_culprits(world: int) -> list[str | None]:
        metadata = msgspec.structs.replace(UNKNOWN, local_world_size=2)
        ranks = [replace(waiter(at), host=host, metadata=metadata) for at, host in enumerate("aab")]
        case = failed_job(ranks)
        case = replace(case, job=replace(case.job, world_size=world), asked_hosts=asked)
        return [culprit.host for one in find(case) for culprit in one.culprits]

    assert name_culprits(world=4) == []  # the missing one is of host b
    assert name_culprits(world=5) == ["c"]


def joining(number: int, **changes: Any) -> Rank:
    """A rank in init_process_group, since 61 s before the case is observed."""
    facts = {"started": 2000.0 - 61, "host": "node-a", **changes}
    return make_rank(number, np.zeros(0, dtype=STEP_DTYPE), **facts)


def test_a_named_host_without_ranks_never_joined_though_no_stack_was_read() -> None:
    gone, silent = AskedHost("c", None, "ssh fails with 'refused'"), AskedHost("d", "node-d")
    here = AskedHost("a", "node-a")
    joined = Event("joined", 2000.0, 0, 0.0, 4.0, "")

    def culprits(*ranks: Rank, asked: tuple[AskedHost, ...], world: int = 4) -> list[str | None]:
        case = replace(make_case(ranks, world_size=world), asked_hosts=asked)
        findings = [one for one in diagnose(case).findings if one.code == "hang-rendezvous"]
        assert all(one.victims == (0, 1) for one in findings)
        return [culprit.host for one in findings for culprit in one.culprits]

    waiting = joining(0), joining(1)
    assert culprits(*waiting, asked=(here, gone)) == ["c"]
    assert culprits(*waiting, asked=(here, gone, silent)) == ["c", "node-d"]
    assert culprits(*waiting, asked=(here,)) == []
    assert culprits(*waiting, asked=()) == []
    assert culprits(*waiting, asked=(here, gone), world=2) == []
    assert culprits(joining(0), joining(1, started=1941.0), asked=(here, gone)) == []
    assert culprits(joining(0), joining(1, events=(joined,)), asked=(here, gone)) == []
    assert culprits(joining(0), joining(1, state=State.DEAD), asked=(here, gone)) == []


def test_afterwards_samples_of_the_hosts_show_how_long_they_waited() -> None:
    """The last sign of life of a rank that joins is its start."""
    asked = AskedHost("a", "node-a"), AskedHost("c", None, "ssh fails with 'refused'")
    for until, expected in ((1938.0 + 61, True), (1938.0 + 59, False)):
        case = make_case((joining(0, started=1938.0),), world_size=2)
        samples = (structs.replace(HOST, at=until), structs.replace(HOST, at=1950.0))
        findings = diagnose(
            replace(case, observed=1938.0, asked_hosts=asked, host_samples=samples)
        ).findings
        assert [one.code for one in findings] == ["hang-rendezvous"] * expected
