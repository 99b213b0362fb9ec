"""The path from a case to a diagnosis: folding, order, what could not be examined."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest

from mgpu_doctor import diagnosis as module
from mgpu_doctor.analysis import measures as measures_module
from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.case.model import Gap, Now, Outcome, State, Unexamined
from mgpu_doctor.diagnosis import diagnose, folded, ordered
from mgpu_doctor.findings import Cost, Culprit, Finding, Severity
from mgpu_doctor.rules.catalogue import OWN, Catalogue
from mgpu_doctor.rules.rule import Limits, Rule
from mgpu_doctor.rules.settings import Settings
from tests.support.synthetic import (
    Fault,
    Synthetic,
    make_case,
    make_rank,
    records,
    synthetic_case,
)


def finding(code: str, severity: Severity, rank: int, cost: float | None = None) -> Finding:
    return Finding(code, severity, 0.9, code, "", (Culprit(rank),), cost=Cost(cost))


def test_wait_is_divided_into_waiting_and_communication() -> None:
    job = Synthetic(faults=[Fault(2, "backward", milliseconds=20)])
    slow, victim = (diagnose(synthetic_case(job)).ranks[number] for number in (2, 0))
    assert slow.phases["wait"] == pytest.approx(0, abs=1e-4)
    assert victim.phases["wait"] == pytest.approx(0.020, rel=0.1)
    assert slow.phases["communication"] == pytest.approx(0.002, rel=0.1)
    assert victim.phases["communication"] == pytest.approx(0.002, rel=0.1)
    assert slow.step_seconds_median == pytest.approx(victim.step_seconds_median)


def test_phases_add_up_to_the_step() -> None:
    for rank in diagnose(synthetic_case(Synthetic(noise=0, spikes=0))).ranks:
        assert sum(v or 0.0 for v in rank.phases.values()) == pytest.approx(
            rank.step_seconds_median, rel=0.01
        )


def test_where_is_the_call_site_or_the_phase() -> None:
    steps = records(Synthetic(ranks=2))
    here = Now("wait", 1.0, 119, "all_reduce train.py:87", 5)
    ranks = [make_rank(0, steps[0], now=here), make_rank(1, steps[1], now=replace(here, site=None))]
    assert [rank.where for rank in diagnose(make_case(ranks)).ranks] == [
        "all_reduce train.py:87",
        "wait",
    ]


def test_one_rank_is_examined_without_complaint() -> None:
    diagnosis = diagnose(synthetic_case(Synthetic(ranks=1)))
    assert diagnosis.findings == ()
    assert diagnosis.unexamined == ()
    assert diagnosis.ranks[0].phases["communication"] is None


def test_a_job_without_black_boxes_says_so_with_a_remedy() -> None:
    diagnosis = diagnose(make_case([], world_size=2))
    assert diagnosis.coverage is None
    assert diagnosis.coverage_reason == "no rank left a black box"
    assert any("-E" in gap.remedy for gap in diagnosis.unexamined)
    assert diagnosis.step_seconds is None


def test_why_there_is_no_box_is_reported_once() -> None:
    why = Unexamined(
        "in-process probe", "no process became a rank", "look at what it printed", Gap.PROCESS_PROBE
    )
    diagnosis = diagnose(replace(make_case([]), unexamined=(why,)))
    assert diagnosis.unexamined == (why,)
    assert diagnosis.coverage_reason == why.reason


def test_ranks_that_never_trained_say_so() -> None:
    steps = records(Synthetic(ranks=2, steps=0))
    diagnosis = diagnose(make_case([make_rank(n, records) for n, records in enumerate(steps)]))
    assert diagnosis.coverage_reason == "no rank recorded a training step"
    assert [rank.last_step for rank in diagnosis.ranks] == [None, None]


def test_a_missing_wait_is_unexamined_not_healthy() -> None:
    steps = records(Synthetic(ranks=2, faults=[Fault(1, "forward", milliseconds=20)]))
    steps[0]["phases"][:, 4] = np.nan
    diagnosis = diagnose(make_case([make_rank(n, records) for n, records in enumerate(steps)]))
    assert [finding.code for finding in diagnosis.findings] == ["coverage-low"]
    assert [gap.probe for gap in diagnosis.unexamined] == ["comparison of ranks"]
    assert "rank 0" in diagnosis.unexamined[0].reason


def test_too_few_steps_are_unexamined_not_healthy() -> None:
    slow = Synthetic(steps=20, faults=[Fault(1, "forward", milliseconds=20)])
    diagnosis = diagnose(synthetic_case(slow))
    assert diagnosis.findings == ()
    assert [gap.reason for gap in diagnosis.unexamined] == [
        "15 steps can be compared; 20 decide at the earliest"
    ]


def test_a_rank_left_out_is_reported() -> None:
    steps = records(Synthetic(ranks=3))
    ranks = [make_rank(n, records[:4] if n == 2 else records) for n, records in enumerate(steps)]
    assert [gap.probe for gap in diagnose(make_case(ranks)).unexamined] == ["speed of rank 2"]


def test_what_the_case_could_not_see_is_passed_on() -> None:
    blind = Unexamined("devices", "no NVIDIA driver", "none needed on a CPU machine")
    case = replace(synthetic_case(Synthetic()), unexamined=(blind,))
    assert diagnose(case).unexamined == (blind,)


def test_coverage_counts_what_phases_explain_and_marks_a_low_one() -> None:
    good = diagnose(synthetic_case(Synthetic(noise=0, spikes=0)))
    assert good.coverage == pytest.approx(1 - 0.001 / 0.0287, abs=0.002)
    idle = [Fault(rank, "other", milliseconds=10) for rank in range(4)]
    low = diagnose(synthetic_case(Synthetic(faults=idle)))
    assert [finding.code for finding in low.findings] == ["coverage-low"]
    assert low.findings[0].severity is Severity.INFO


def test_order_is_what_stops_then_what_costs() -> None:
    dead = finding("hang-rank-dead", Severity.CRITICAL, 1)
    dear = finding("input-bound", Severity.WARNING, 0, 0.4)
    cheap = finding("straggler-other", Severity.WARNING, 2, 0.06)
    told = finding("coverage-low", Severity.INFO, 3)
    assert ordered([told, cheap, dear, dead]) == (dead, dear, cheap, told)


def test_a_dead_rank_outranks_its_speed_and_only_its() -> None:
    dead = finding("hang-rank-dead", Severity.CRITICAL, 1)
    slow = finding("straggler-compute", Severity.WARNING, 1, 0.3)
    other = finding("straggler-compute", Severity.WARNING, 2, 0.3)
    assert folded([slow, other, dead], OWN) == [other, dead]


def test_the_more_specific_finding_replaces_the_other_for_the_same_culprit() -> None:
    general = finding("straggler-compute", Severity.WARNING, 1, 0.3)
    elsewhere = finding("straggler-compute", Severity.WARNING, 2, 0.3)
    special = finding("straggler-input", Severity.WARNING, 1, 0.3)
    assert folded([general, elsewhere, special], OWN) == [elsewhere, special]


def rule(code: str, found: Iterable[Finding] | Exception) -> Rule:
    def examine(_measures: Measures, _limits: Limits) -> Iterable[Finding]:
        if isinstance(found, Exception):
            raise found
        return found

    return Rule(code, "test", "", "", "", "", examine)


def test_a_hang_makes_the_job_hung_and_its_culprit_too(monkeypatch: pytest.MonkeyPatch) -> None:
    hang = replace(finding("hang-rank-behind", Severity.CRITICAL, 1), victims=(0, 2))
    monkeypatch.setattr(module, "catalogue", lambda: Catalogue((rule("x", [hang]),)))
    diagnosis = diagnose(synthetic_case(Synthetic(ranks=4)))
    assert diagnosis.case.job.outcome is Outcome.HUNG
    assert [rank.state for rank in diagnosis.ranks] == ["waiting", "hung", "waiting", "running"]


def test_a_dead_culprit_stays_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    hang = finding("hang-rank-dead", Severity.CRITICAL, 0)
    monkeypatch.setattr(module, "catalogue", lambda: Catalogue((rule("x", [hang]),)))
    steps = records(Synthetic(ranks=2))
    ranks = [make_rank(0, steps[0], state=State.DEAD), make_rank(1, steps[1])]
    assert diagnose(make_case(ranks)).ranks[0].state == "dead"


def test_a_broken_rule_of_another_package_is_reported_not_fatal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broken = rule("theirs", ValueError("no such key"))
    monkeypatch.setattr(module, "catalogue", lambda: Catalogue((*OWN, broken)))
    diagnosis = diagnose(synthetic_case(Synthetic(faults=[Fault(1, "forward", 20)])))
    assert [finding.code for finding in diagnosis.findings] == ["straggler-compute"]
    assert [gap.probe for gap in diagnosis.unexamined] == ["rule theirs"]
    assert "no such key" in diagnosis.unexamined[0].reason


def test_a_broken_rule_of_ours_is_reported_to_users_and_shown_to_us(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broken = rule("ours", ValueError("no such key"))
    monkeypatch.setattr(module, "catalogue", lambda: Catalogue((*OWN, broken)))
    monkeypatch.setattr(module, "OWN", (*OWN, broken))
    case = synthetic_case(Synthetic(faults=[Fault(1, "forward", 20)]))
    with pytest.raises(ValueError, match="no such key"):
        diagnose(case)
    diagnosis = diagnose(case, Settings(forgiving=True))
    assert [finding.code for finding in diagnosis.findings] == ["straggler-compute"]
    assert [gap.probe for gap in diagnosis.unexamined] == ["rule ours"]


def test_users_get_the_other_findings_if_the_post_mortem_crashes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def crash(*_: object, **__: object) -> None:
        raise KeyError("no such rank")

    monkeypatch.setattr(measures_module, "examine_failures", crash)
    case = synthetic_case(Synthetic(faults=[Fault(1, "forward", 20)]))
    with pytest.raises(KeyError):
        diagnose(case)
    diagnosis = diagnose(case, Settings(forgiving=True))
    assert [finding.code for finding in diagnosis.findings] == ["straggler-compute"]
    assert [(gap.probe, gap.reason) for gap in diagnosis.unexamined] == [
        ("analysis of failures", "it failed with KeyError: 'no such rank'")
    ]


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("surroundings", "host samples"),
        ("estimate_waits", "host load"),
        ("phase_shares", "phases"),
        ("run_ahead", "step times"),
        ("divide_collectives", "typical steps"),
        ("join", "work of ranks"),
    ],
)
def test_users_get_all_else_if_a_part_of_the_analysis_crashes(
    monkeypatch: pytest.MonkeyPatch, name: str, part: str
) -> None:
    def crash(*_: object, **__: object) -> None:
        raise KeyError("no such step")

    monkeypatch.setattr(measures_module, name, crash)
    case = synthetic_case(Synthetic(faults=[Fault(1, "forward", 20)]))
    with pytest.raises(KeyError):
        diagnose(case)
    made = diagnose(case, Settings(forgiving=True))
    assert [(gap.probe, gap.reason) for gap in made.unexamined] == [
        (f"analysis of {part}", "it failed with KeyError: 'no such step'")
    ]
    codes = [finding.code for finding in made.findings]
    assert codes == ([] if name == "join" else ["straggler-compute"])
    assert (made.step_seconds is None) == (name == "run_ahead")
    assert (made.ranks[0].step_seconds_median is None) == (name == "divide_collectives")


def test_of_a_running_job_the_ranks_are_reported_as_they_are_of_late() -> None:
    late = Fault(1, "forward", milliseconds=100, start=2200)
    case = synthetic_case(Synthetic(ranks=2, steps=3000, faults=[late]))
    told = []
    for outcome in (Outcome.COMPLETED, Outcome.RUNNING):
        rank = diagnose(replace(case, job=replace(case.job, outcome=outcome))).ranks[0]
        told.append(rank.step_seconds_median or 0.0)
    assert told == [pytest.approx(0.03, rel=0.1), pytest.approx(0.13, rel=0.1)]
