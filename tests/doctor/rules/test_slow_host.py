"""slow-host: named if all of its ranks are slow and no others are, silent otherwise."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mgpu_doctor.case.model import Case
from mgpu_doctor.diagnosis import diagnose
from mgpu_doctor.findings import Finding
from tests.support.rule_limits import equal_counts_as
from tests.support.synthetic import Fault, Synthetic, synthetic_case


def hosted(each: int, ranks: int, *slow: int, phase: str = "backward", **fault: float) -> Case:
    """A job with `each` ranks on every host, node-0 and so on, of which some are slow."""
    shape = {"milliseconds": 20.0, **fault}
    faults = [Fault(rank, phase, **shape) for rank in slow]  # type: ignore[arg-type]
    case = synthetic_case(Synthetic(ranks=ranks, faults=faults))
    placed = tuple(replace(rank, host=f"node-{(rank.rank or 0) // each}") for rank in case.ranks)
    names = tuple(dict.fromkeys(str(rank.host) for rank in placed))
    return replace(case, ranks=placed, job=replace(case.job, hosts=names))


def named(case: Case) -> list[tuple[str, list[int | None]]]:
    findings = diagnose(case).findings
    return [(one.code, [culprit.rank for culprit in one.culprits]) for one in findings]


def first(case: Case) -> Finding:
    return diagnose(case).findings[0]


@pytest.mark.parametrize(("each", "ranks"), [(2, 4), (2, 6), (8, 16), (8, 64)])
def test_a_host_is_named_with_all_of_its_ranks(each: int, ranks: int) -> None:
    own = range(each, 2 * each)
    case = hosted(each, ranks, *own)
    assert named(case) == [("slow-host", [*own])]
    finding = first(case)
    assert {culprit.host for culprit in finding.culprits} == {"node-1"}
    assert finding.victims == tuple(rank for rank in range(ranks) if rank not in own)
    assert finding.since_step == 0
    work, waits, *_ = finding.evidence
    assert isinstance(work.value, float)
    assert isinstance(work.baseline, float)
    assert work.value - work.baseline == pytest.approx(0.020, rel=0.1)
    assert isinstance(waits.value, float)
    assert isinstance(waits.baseline, float)
    assert waits.baseline > waits.value


def test_what_it_saves_is_the_whole_excess() -> None:
    slow, healthy = diagnose(hosted(2, 6, 2, 3)), diagnose(hosted(2, 6))
    assert slow.step_seconds is not None
    assert healthy.step_seconds is not None
    (finding,) = slow.findings
    lost = slow.step_seconds - healthy.step_seconds
    assert finding.cost.seconds_per_step == pytest.approx(lost, rel=0.05)


def test_a_slow_rank_is_no_slow_host() -> None:
    assert named(hosted(2, 4, 2)) == [("straggler-compute", [2])]
    assert named(hosted(1, 4, 2)) == [("straggler-compute", [2])]  # its host has no other rank


def test_ranks_of_several_hosts_are_not_one_slow_host() -> None:
    assert "slow-host" not in {code for code, _ in named(hosted(2, 8, 2, 3, 4))}
    assert "slow-host" not in {code for code, _ in named(hosted(2, 8, 3, 4))}


def test_two_slow_hosts() -> None:
    assert named(hosted(2, 8, 2, 3, 6, 7)) == [("slow-host", [2, 3, 6, 7])]


def test_slow_input_on_all_ranks_of_a_host() -> None:
    finding = first(hosted(2, 6, 2, 3, phase="input"))
    assert finding.code == "slow-host"
    assert "storage" in finding.cause


def test_ranks_that_save_are_no_slow_host() -> None:
    found = named(hosted(2, 6, 2, 3, phase="checkpoint"))
    assert "slow-host" not in {code for code, _ in found}


def test_it_begins_later() -> None:
    finding = first(hosted(2, 6, 2, 3, start=60))
    assert finding.code == "slow-host"
    assert finding.since_step == pytest.approx(60, abs=5)


def test_a_cost_of_the_limit_counts() -> None:
    case = hosted(2, 6, 2, 3)
    cost = first(case).cost.step_fraction
    assert cost is not None
    assert equal_counts_as(case, "slow-host", "cost", cost) == "more"
