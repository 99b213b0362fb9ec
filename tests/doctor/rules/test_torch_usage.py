"""Repeated compilation, and DataParallel, on synthetic cases."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mgpu_doctor.case.model import Case, Event
from mgpu_doctor.diagnosis import diagnose
from mgpu_doctor.findings import Finding, Severity
from tests.support.per_step_jobs import case_of_seconds, healthy
from tests.support.rule_limits import equal_counts_as
from tests.support.synthetic import Synthetic, make_case, make_rank, records, synthetic_case

WHY = "forward jobs/train.py:31: 0/3: tensor 'x' size mismatch at index 0. expected 64, actual 65"


def compiling(at: dict[int, list[int]], seconds: float, *, ranks: int = 4, text: str = WHY) -> Case:
    """A healthy job in which ranks compile for `seconds` in these steps."""
    job = Synthetic(ranks=ranks)
    made = []
    for number, steps in enumerate(records(job)):
        events = tuple(
            Event("recompile", steps["end_ns"][step] / 1e9 - seconds, step, seconds, 2.0, text)
            for step in at.get(number, [])
        )
        made.append(replace(make_rank(number, steps), events=events))
    return make_case(made)


def findings_of(case: Case, code: str = "recompiling") -> list[Finding]:
    return [finding for finding in diagnose(case).findings if finding.code == code]


def test_all_ranks_compile_again_in_the_same_steps() -> None:
    steps = list(range(20, 120, 10))
    (finding,) = findings_of(compiling(dict.fromkeys(range(4), steps), 0.010))
    assert finding.severity is Severity.INFO
    assert "in 10 of 110 steps, 10 ms" in finding.title
    assert [culprit.rank for culprit in finding.culprits] == [0, 1, 2, 3]
    assert finding.victims == ()
    assert "size mismatch" in finding.cause
    assert finding.evidence[0].where == "forward jobs/train.py:31"
    assert finding.since_step == 20
    # 100 ms of 110 steps of about 30 ms: they compile at once, which is lost once.
    assert finding.cost.step_fraction == pytest.approx(0.03, abs=0.006)
    assert "TORCH_LOGS=recompiles torchrun train.py" in finding.fixes[1].how


def test_ranks_that_compile_one_after_the_other_cost_the_sum() -> None:
    at = {rank: list(range(20 + rank, 120, 10)) for rank in range(4)}
    (finding,) = findings_of(compiling(at, 0.010))
    assert finding.severity is Severity.WARNING
    assert finding.cost.step_fraction == pytest.approx(0.12, abs=0.02)


@pytest.mark.parametrize("phase", ["other", "forward"])
@pytest.mark.parametrize(("every", "codes"), [(20, ["recompiling"]), (40, [])])
@pytest.mark.parametrize("seconds", [0.3, 3.0])
def test_what_one_rank_compiles_is_not_called_its_stall(
    seconds: float, every: int, codes: list[str], phase: str
) -> None:
    """At a regular distance, outside every phase or in one: three times are a start, more are
    recompiling."""
    work = healthy(Synthetic(ranks=3, steps=140))
    at = range(30, 140, every)
    work[phase][list(at), 0] += seconds
    case = case_of_seconds(work)
    steps = case.ranks[0].steps
    events = tuple(
        Event("recompile", steps["end_ns"][step] / 1e9 - seconds, step, seconds, 2.0, WHY)
        for step in at
    )
    case = replace(case, ranks=(replace(case.ranks[0], events=events), *case.ranks[1:]))
    loud = [finding for finding in diagnose(case).findings if finding.severity is not Severity.INFO]
    assert [finding.code for finding in loud] == codes
    assert {who.rank for finding in loud for who in finding.culprits} == ({0} if codes else set())


def test_one_rank_is_named_and_the_others_wait() -> None:
    (finding,) = findings_of(compiling({2: list(range(20, 120, 5)), 1: [30]}, 0.010))
    assert [culprit.rank for culprit in finding.culprits] == [2]
    assert finding.victims == (0, 1, 3)
    assert "rank 2; the other ranks wait" in finding.cause


@pytest.mark.parametrize(
    "at",
    [
        {0: [0, 1, 2, 3, 4, 5, 9], 1: [0, 1, 2, 3]},  # the start
        {0: [40, 41, 80]},  # a validation, its last batch, the last batch
        {0: [0] * 50},
    ],
)
def test_what_is_compiled_once_is_no_habit(at: dict[int, list[int]]) -> None:
    assert findings_of(compiling(at, 0.5)) == []


def test_what_costs_next_to_nothing_is_not_reported() -> None:
    assert findings_of(compiling({0: list(range(20, 60, 8))}, 0.001)) == []


def test_a_probe_that_does_not_know_the_reason_says_none() -> None:
    (finding,) = findings_of(compiling({0: list(range(20, 120, 5))}, 0.010, text=""))
    assert "because of" not in finding.cause
    assert finding.evidence[0].where is None


def in_parallel(birth: dict[str, Any]) -> list[Finding]:
    return findings_of(synthetic_case(Synthetic(ranks=1, birth=birth)), "strategy-outdated")


def test_data_parallel_over_several_devices() -> None:
    (one,) = in_parallel({"strategy": "dp", "data_parallel": {"devices": 4}})
    assert one.severity is Severity.WARNING
    assert "4 GPUs" in one.title
    assert "--nproc-per-node=4" in one.fixes[0].how
    assert [culprit.rank for culprit in one.culprits] == [0]


@pytest.mark.parametrize(("devices", "says"), [(0, "no GPU"), (1, "one GPU")])
def test_data_parallel_with_nothing_to_divide(devices: int, says: str) -> None:
    (one,) = in_parallel({"strategy": "dp", "data_parallel": {"devices": devices}})
    assert one.severity is Severity.INFO
    assert says in one.title


@pytest.mark.parametrize(
    "expected", [{}, {"data_parallel": {"devices": None}}, {"data_parallel": 4}]
)
def test_no_data_parallel_no_word(expected: dict[str, Any]) -> None:
    assert in_parallel({"strategy": "ddp", **expected}) == []


def test_what_equals_a_limit_of_recompiling_counts() -> None:
    steps = list(range(20, 120, 10))
    case = compiling(dict.fromkeys(range(4), steps), 0.010)
    (finding,) = findings_of(case)
    assert equal_counts_as(case, "recompiling", "cost", finding.cost.step_fraction) == "more"
    assert equal_counts_as(case, "recompiling", "steps", len(steps)) == "less"
