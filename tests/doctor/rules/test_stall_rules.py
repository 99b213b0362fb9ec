"""Findings about stalls: code, culprits, victims, period, cost and fixes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from mgpu_probes.inprocess.layout import PHASES
from msgspec import structs

from mgpu_doctor.case.model import Case, Event
from mgpu_doctor.diagnosis import diagnose
from mgpu_doctor.findings import Finding, Severity
from tests.support.hosts import ProcessLoad, on_host, sampled
from tests.support.metadata import with_metadata
from tests.support.per_step_jobs import case_of_seconds, healthy
from tests.support.rule_limits import equal_counts_as
from tests.support.synthetic import BASE, Fault, Synthetic, synthetic_case

STEPS = 160


def diagnose_warnings(case: Case) -> list[Finding]:
    return [finding for finding in diagnose(case).findings if finding.severity is not Severity.INFO]


def stalled(
    phase: str, rank: int, milliseconds: float = 300, every: int = 20, ranks: int = 4
) -> Case:
    fault = Fault(rank, phase, milliseconds=milliseconds, start=10, every=every)
    return synthetic_case(Synthetic(ranks=ranks, steps=STEPS, faults=[fault]))


def collected(seconds: np.ndarray[Any, Any], **case: Any) -> Case:
    work = healthy(Synthetic(ranks=seconds.shape[1], steps=len(seconds)))
    work["other"] += seconds
    return replace(case_of_seconds(work, fields={"gc_s": seconds}), **case)


def now_and_then(ranks: int, who: int) -> np.ndarray[Any, Any]:
    seconds = np.full((STEPS, ranks), 2e-5)
    seconds[10::20, who] = 0.15
    return seconds


@pytest.mark.parametrize(
    ("phase", "rank", "code"),
    [
        ("other", 1, "straggler-transient"),
        ("input", 1, "straggler-transient"),
        ("forward", 0, "straggler-transient"),
        ("backward", 3, "straggler-transient"),
        ("optimizer", 2, "straggler-transient"),
        ("other", 0, "rank0-only-work"),
        ("evaluation", 0, "rank0-only-work"),
        ("evaluation", 2, "rank0-only-work"),
        ("checkpoint", 0, "checkpoint-stall"),
        ("checkpoint", 3, "checkpoint-stall"),
    ],
)
def test_place_and_rank_decide_the_code(phase: str, rank: int, code: str) -> None:
    (finding,) = diagnose_warnings(stalled(phase, rank))
    assert (finding.code, [culprit.rank for culprit in finding.culprits]) == (code, [rank])
    assert finding.victims == tuple(other for other in range(4) if other != rank)
    assert "every 20 steps" in finding.title
    assert finding.since_step == 0
    assert finding.cost.step_fraction is not None
    assert finding.cost.step_fraction > 0.3
    assert finding.cost.seconds_per_step == pytest.approx(0.3 / 20, rel=0.15)


@pytest.mark.parametrize(
    ("birth", "says"),
    [
        ({"loaders": [{"workers": 0}]}, "its forward pass takes longer."),
        ({}, "a batch that the script fetches there is part of it."),
        ({"step_sign": "backward"}, "its forward pass, or what runs between steps, takes longer"),
    ],
)
def test_a_batch_may_be_fetched_in_what_counts_as_forward(birth: dict[str, Any], says: str) -> None:
    base = {phase: seconds for phase, seconds in BASE.items() if phase != "input"}
    fault = Fault(1, "forward", milliseconds=300, start=10, every=20)
    case = synthetic_case(Synthetic(steps=STEPS, base=base, faults=[fault], birth=birth))
    (finding,) = diagnose_warnings(case)
    assert finding.code == "straggler-transient"
    assert says in finding.cause
    assert ('mgpu_doctor.phase("input")' in finding.fixes[0].how) == ("loaders" not in birth)


def test_stalls_that_began_late_say_when() -> None:
    fault = Fault(1, "other", milliseconds=300, start=100, every=20)
    (finding,) = diagnose_warnings(synthetic_case(Synthetic(steps=240, faults=[fault])))
    assert finding.since_step == 100


@pytest.mark.parametrize("phase", ["other", "evaluation", "checkpoint"])
def test_the_cost_divides_warning_from_info_from_silence(phase: str) -> None:
    codes = []
    for milliseconds in (60, 18, 3):
        findings = [
            finding
            for finding in diagnose(stalled(phase, 0, milliseconds)).findings
            if finding.culprits
        ]
        codes.append([one.severity for one in findings])
    assert codes == [[Severity.WARNING], [Severity.INFO], []]


def test_rank_zero_without_a_period_merely_stalls() -> None:
    random = np.random.default_rng(5)
    work = healthy(Synthetic(steps=300))
    work["other"][30 + random.choice(260, 16, replace=False), 0] += 0.2
    (finding,) = diagnose_warnings(case_of_seconds(work))
    assert finding.code == "straggler-transient"
    assert f"16 times in {300 - 5} steps" in finding.title


def test_collections_of_one_rank() -> None:
    (finding,) = diagnose_warnings(collected(now_and_then(4, 1)))
    assert (finding.code, [culprit.rank for culprit in finding.culprits]) == ("gc-pauses", [1])
    assert finding.victims == (0, 2, 3)
    assert "gc.freeze()" in finding.fixes[0].how
    assert "gc.collect(1)" in finding.fixes[1].how
    assert finding.fixes[0].predicted is not None
    assert finding.fixes[0].predicted.step_time_ratio == pytest.approx(
        1 - (finding.cost.step_fraction or 0)
    )


def test_collections_in_every_step_of_a_job_of_one_rank() -> None:
    """They are not unexplained time, too."""
    (finding,) = diagnose(collected(np.full((STEPS, 1), 0.03))).findings
    assert "stops the training every step" in finding.title
    assert (finding.code, [culprit.rank for culprit in finding.culprits]) == ("gc-pauses", [0])
    assert finding.victims == ()
    assert "other ranks" not in finding.cause
    assert finding.cost.step_fraction == pytest.approx(0.03 / 0.06, rel=0.15)
    assert finding.cost.seconds_per_step == pytest.approx(0.03, rel=0.05)


def test_checkpoints_of_a_job_of_one_rank() -> None:
    (finding,) = diagnose_warnings(stalled("checkpoint", 0, ranks=1))
    assert (finding.code, finding.victims) == ("checkpoint-stall", ())
    assert "a checkpoint stops the training every 20 steps, for 300 ms" in finding.title
    assert [fix.id for fix in finding.fixes] == ["save-in-background", "less-often"]
    assert finding.cost.seconds_per_step == pytest.approx(0.3 / 20, rel=0.15)


@pytest.mark.parametrize("phase", ["other", "forward", "input", "evaluation"])
def test_no_other_rank_shows_what_else_is_unusual(phase: str) -> None:
    case = stalled(phase, 0, milliseconds=100, ranks=1)
    assert not {"straggler-transient", "rank0-only-work", "checkpoint-stall"} & {
        finding.code for finding in diagnose(case).findings
    }


def test_collections_that_are_asked_for_by_name() -> None:
    case = collected(now_and_then(2, 0))
    full = Event("gc", 1000.0, 20, 0.15, 2.0, "")
    ranks = (replace(case.ranks[0], events=(full,) * 6), case.ranks[1])
    (finding,) = diagnose_warnings(replace(case, ranks=ranks))
    assert "6 of 6 recorded pauses were full collections" in finding.cause
    assert "gc.collect()" in finding.cause


def test_collections_in_every_step_replace_the_straggler_that_they_make() -> None:
    seconds = np.zeros((STEPS, 4))
    seconds[:, 2] = 0.02
    (finding,) = diagnose_warnings(collected(seconds))
    assert (finding.code, [culprit.rank for culprit in finding.culprits]) == ("gc-pauses", [2])
    assert "every step" in finding.title


@pytest.mark.parametrize("seldom", ["checkpoint", "other", "gc"])
def test_a_straggler_that_also_stalls_is_reported_for_both(seldom: str) -> None:
    """Two causes, two findings: the stalls do not explain the slow steps between them."""
    work = healthy(Synthetic(steps=200))
    work["backward"][:, 1] += 0.02
    stalls = np.zeros((200, 4))
    stalls[10::20, 1] = 0.4
    phase = "other" if seldom == "gc" else seldom
    work[phase] = work.get(phase, 0) + stalls
    fields = {"gc_s": stalls} if seldom == "gc" else {}
    codes = {finding.code for finding in diagnose_warnings(case_of_seconds(work, fields=fields))}
    assert "straggler-compute" in codes
    assert len(codes) == 2


def test_each_fix_of_a_checkpoint_has_its_figure() -> None:
    (finding,) = diagnose_warnings(stalled("checkpoint", 0))
    background, seldom, sharded = finding.fixes
    assert "async_save" in background.how
    assert seldom.summary == "Save every 1100 steps instead of every 20"
    assert "% 1100 == 0" in seldom.how
    assert "1.0 % of the time" in seldom.how
    assert "dcp.save" in sharded.how
    ratios = [fix.predicted.step_time_ratio for fix in finding.fixes if fix.predicted]
    assert [ratio for ratio in ratios if ratio is not None] == sorted(
        ratio for ratio in ratios if ratio is not None
    )


def test_saving_on_all_ranks_has_no_victims() -> None:
    faults = [Fault(rank, "checkpoint", milliseconds=300, start=10, every=20) for rank in range(4)]
    (finding,) = diagnose_warnings(synthetic_case(Synthetic(steps=STEPS, faults=faults)))
    assert finding.code == "checkpoint-stall"
    assert sorted(culprit.rank for culprit in finding.culprits if culprit.rank is not None) == [
        0,
        1,
        2,
        3,
    ]
    assert finding.victims == ()
    assert "on all ranks" in finding.title


def test_the_end_of_an_epoch_is_called_so() -> None:
    case = stalled("evaluation", 0)
    birth = {"loaders": [{"batches": 20}]}
    ranks = tuple(with_metadata(rank, **birth) for rank in case.ranks)
    (finding,) = diagnose_warnings(replace(case, ranks=ranks))
    assert "at every epoch (20 steps)" in finding.title
    assert "DistributedSampler" in finding.fixes[0].how


@pytest.mark.parametrize(
    ("share", "fix"), [(0.08, "evaluate-together"), (0.12, "move-work"), (0.4, "move-work")]
)
def test_a_longer_evaluation_than_the_others_is_not_a_lone_one(share: float, fix: str) -> None:
    work = healthy(Synthetic(steps=STEPS))
    work["evaluation"] = np.zeros((STEPS, 4))
    work["evaluation"][10::20] = np.array([1.0, share, share, share]) * 0.3
    (found,) = diagnose_warnings(case_of_seconds(work))
    assert (found.code, [one.rank for one in found.culprits]) == ("rank0-only-work", [0])
    assert found.fixes[0].id == fix


@pytest.mark.parametrize(("share", "says"), [(0.95, "busy all the time"), (0.02, "waited")])
def test_the_clock_of_the_thread_tells_work_from_waiting(share: float, says: str) -> None:
    work = healthy(Synthetic(steps=STEPS))
    work["other"][10::20, 1] += 0.3
    ran = np.full((STEPS, 4), 0.02)
    ran[10::20, 1] += share * 0.3
    (finding,) = diagnose_warnings(case_of_seconds(work, fields={"cpu_s": ran}))
    assert says in finding.cause


@pytest.mark.parametrize("ranks", [2, 4])
def test_healthy_jobs(ranks: int) -> None:
    for seed in range(10):
        assert diagnose(synthetic_case(Synthetic(ranks=ranks, seed=seed))).findings == ()


@pytest.mark.parametrize(
    ("queued", "fix", "expected"),
    [
        (0.2, "clear-cores", "core for 20 % of the time (on the other ranks: 1 %)"),
        (0.18, "clear-cores", "core for 18 % of the time"),
        (0.16, "find-stall", "takes longer"),
        (0.02, "find-stall", "takes longer"),
    ],
)
def test_stalls_of_a_rank_whose_core_others_have(queued: float, fix: str, expected: str) -> None:
    around = {rank: ProcessLoad(queued=queued if rank == 3 else 0.01) for rank in range(4)}
    (finding,) = diagnose_warnings(sampled(on_host(stalled("backward", 3)), around))
    assert (finding.code, [culprit.rank for culprit in finding.culprits]) == (
        "straggler-transient",
        [3],
    )
    assert expected in finding.cause
    assert finding.ruled_out == ("garbage collection", "checkpoints", "evaluation")
    (advised,) = finding.fixes
    assert advised.id == fix
    assert advised.predicted is not None


@pytest.mark.parametrize(
    ("throttled", "others", "fix"),
    [(0.2, None, "raise-quota"), (0.2, 0.15, "find-stall"), (0.02, None, "find-stall")],
)
def test_stalls_of_a_rank_that_a_quota_stops(
    throttled: float, others: float | None, fix: str
) -> None:
    around = {
        rank: ProcessLoad(throttled=throttled if rank == 3 else others, quota=0.5)
        for rank in range(4)
    }
    (finding,) = diagnose_warnings(sampled(on_host(stalled("backward", 3)), around))
    assert finding.code == "straggler-transient"
    assert ("CPU quota (0.5 cores) for 200 ms" in finding.cause) is (fix == "raise-quota")
    assert [each.id for each in finding.fixes] == [fix]


AT_TIMES = [10, 17, 42, 45, 51, 66, 78, 83, 101, 110, 124, 149]
"""Steps at no regular distance."""


@pytest.mark.parametrize(
    ("others", "steps", "severity"),
    [
        (0.19, AT_TIMES, "warning"),
        (0.21, AT_TIMES, "info"),
        (0.21, range(10, STEPS, 20), "warning"),
    ],
)
def test_stalls_by_waits_for_cores_are_a_note_if_all_ranks_have_them(
    others: float, steps: Sequence[int], severity: str
) -> None:
    """At load 10, of two healthy ranks the one that is woken up first waits half as long again."""
    around = {rank: ProcessLoad(queued=0.6 if rank == 3 else others) for rank in range(4)}
    work = healthy(Synthetic(steps=STEPS))
    work["backward"][list(steps), 3] += 0.3
    (finding,) = diagnose(sampled(on_host(case_of_seconds(work)), around)).findings
    assert (finding.code, finding.severity.value) == ("straggler-transient", severity)
    assert ("any rank" in finding.cause) is (severity == "info")


@pytest.mark.parametrize(
    ("outside", "computed", "severity"),
    [(8.0, 0.0, "info"), (1.0, 0.0, "warning"), (8.0, 0.9, "warning")],
)
def test_stalls_in_which_a_wait_for_a_core_is_unknown(
    outside: float, computed: float, severity: str
) -> None:
    """In a run too short to be sampled twice; the host has 8 cores."""
    work = healthy(Synthetic(steps=STEPS))
    work["other"][AT_TIMES, 1] += 0.3
    ran = np.full((STEPS, 4), 0.02)
    ran[AT_TIMES, 1] += computed * 0.3
    case = sampled(on_host(case_of_seconds(work, fields={"cpu_s": ran})), {}, outside=outside)
    samples = tuple(structs.replace(sample, cores=8, tasks={}) for sample in case.host_samples)
    findings = diagnose(replace(case, host_samples=samples)).findings
    found = {finding.code: finding.severity.value for finding in findings}
    assert found["straggler-transient"] == severity


def few(
    *stalls: tuple[int, int, float],
    phase: str = "other",
    steps: int = 160,
    computed: float = 1.0,
    ranks: int = 3,
) -> Case:
    """A job with these stalls: step, rank, seconds. `computed`: share of a stall in which the
    rank's thread ran."""
    work = healthy(Synthetic(ranks=ranks, steps=steps))
    running = np.sum(list(work.values()), axis=0)
    for step, rank, seconds in stalls:
        work.setdefault(phase, np.zeros((steps, ranks)))[step, rank] += seconds
        running[step, rank] += computed * seconds
    return case_of_seconds(work, fields={"cpu_s": running})


@pytest.mark.parametrize("phase", ["other", "forward", "input"])
def test_two_stalls_count_if_they_take_much_of_the_time(phase: str) -> None:
    (finding,) = diagnose_warnings(few((50, 2, 3.0), (110, 2, 2.0), phase=phase))
    assert finding.code == "straggler-transient"
    assert [culprit.rank for culprit in finding.culprits] == [2]
    assert finding.victims == (0, 1)
    assert finding.confidence == 0.7
    assert [row.value for row in finding.evidence[:2]] == [2, pytest.approx(2.5, abs=0.05)]
    without = 160 * 0.029
    assert finding.cost.step_fraction == pytest.approx(5 / (5 + without), rel=0.1)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(few((3, 2, 3.0)), id="in the first steps"),
        pytest.param(few((50, 2, 3.0), (110, 2, 3.0), computed=0.3), id="without a core"),
        pytest.param(few((50, 2, 3.0), (110, 1, 3.0)), id="of different ranks"),
        pytest.param(few((50, 2, 0.8), (110, 2, 0.8)), id="shorter than a second"),
        pytest.param(few((50, 2, 1.1), (110, 2, 1.1), steps=1500), id="of little cost"),
        pytest.param(
            few(*((step, rank, 3.0) for step in (50, 110) for rank in range(3))), id="of all ranks"
        ),
    ],
)
def test_few_stalls_that_name_nobody(case: Case) -> None:
    assert [found.culprits for found in diagnose_warnings(case)] == []


@pytest.mark.parametrize(
    ("phase", "rank", "code"),
    [
        ("checkpoint", 0, "checkpoint-stall"),
        ("evaluation", 0, "rank0-only-work"),
        ("forward", 1, "straggler-transient"),
    ],
)
def test_a_stall_that_costs_as_much_as_the_limit_is_reported(
    phase: str, rank: int, code: str
) -> None:
    case = stalled(phase, rank)
    (finding,) = diagnose_warnings(case)
    assert equal_counts_as(case, code, "cost", finding.cost.step_fraction) == "more"


def test_collections_that_cost_as_much_as_the_limit_are_reported() -> None:
    case = collected(now_and_then(4, 1))
    (finding,) = diagnose_warnings(case)
    assert equal_counts_as(case, "gc-pauses", "cost", finding.cost.step_fraction) == "more"


def with_second_rank(other: float) -> Case:
    """Rank 1 works, too, while rank 2 stalls."""
    return few(*((step, 2, 3.0) for step in (50, 110)), *((step, 1, other) for step in (50, 110)))


@pytest.mark.parametrize(
    ("case", "reported"),
    [
        pytest.param(few((50, 2, 1.02), (110, 2, 1.02)), True, id="a second"),
        pytest.param(few((50, 2, 0.95), (110, 2, 0.95)), False, id="less than a second"),
        pytest.param(few((50, 2, 3.0), (110, 2, 3.0), computed=0.85), True, id="computed"),
        pytest.param(few((50, 2, 3.0), (110, 2, 3.0), computed=0.75), False, id="too little"),
        pytest.param(few((50, 2, 1.1), (110, 2, 1.1), steps=620), True, id="a tenth of the time"),
        pytest.param(few((50, 2, 1.1), (110, 2, 1.1), steps=760), False, id="less of it"),
        pytest.param(with_second_rank(0.5), True, id="the others wait for most of it"),
        pytest.param(with_second_rank(0.7), False, id="another works as well"),
    ],
)
def test_both_sides_of_the_limits_of_few_stalls(case: Case, reported: bool) -> None:
    culprits = [[culprit.rank for culprit in found.culprits] for found in diagnose_warnings(case)]
    assert culprits == [[2]] * reported


@pytest.mark.parametrize(
    ("phase", "rank", "code"),
    [
        ("other", 2, "straggler-transient"),
        ("evaluation", 0, "rank0-only-work"),
        ("checkpoint", 0, "checkpoint-stall"),
    ],
)
@pytest.mark.parametrize("step", [12, 100])
def test_a_single_stall_counts_if_it_takes_much_of_the_time(
    step: int, phase: str, rank: int, code: str
) -> None:
    (finding,) = diagnose_warnings(few((step, rank, 2.0), phase=phase))
    assert (finding.code, [culprit.rank for culprit in finding.culprits]) == (code, [rank])
    assert finding.confidence == 0.6
    assert [row.value for row in finding.evidence[:2]] == [1, pytest.approx(2.0, abs=0.05)]


def after_the_collectives(step: int, rank: int, seconds: float) -> Case:
    """The rank stalls between two steps: it is in its step, and the others wait in their next."""
    case = few(ranks=2)
    for each in case.ranks:
        stalls = each.rank == rank
        row, phase = (step, "other") if stalls else (step + 1, "wait")
        each.steps["phases"][row, PHASES.index(phase)] += seconds
        each.steps["wall_ns"][row] += int(seconds * 1e9)
        each.steps["end_ns"][row:] += int(seconds * 1e9)
        each.steps["cpu_s"][row] += seconds * stalls
    return case


@pytest.mark.parametrize("step", [7, 12, 60])
def test_the_wait_for_an_early_stall_in_the_next_step_is_no_warm_up(step: int) -> None:
    (finding,) = diagnose_warnings(after_the_collectives(step, 1, 2.5))
    assert (finding.code, [culprit.rank for culprit in finding.culprits]) == (
        "straggler-transient",
        [1],
    )
    assert finding.cost.step_fraction == pytest.approx(2.5 / (2.5 + 155 * 0.029), rel=0.05)


def idle(queued: float) -> Case:
    """Rank 2 stalls once, is idle, and waits for a core for so many seconds per second."""
    return sampled(few((50, 2, 2.0), computed=0.1), {2: ProcessLoad(queued=queued)})


@pytest.mark.parametrize(
    ("case", "reported"),
    [
        pytest.param(few((50, 2, 2.0), computed=0.1), False, id="idle, or without a core"),
        pytest.param(idle(0.02), True, id="idle"),
        pytest.param(idle(0.5), False, id="without a core"),
        pytest.param(few((50, 2, 2.0), steps=860), True, id="7 % of the time"),
        pytest.param(few((50, 2, 2.0), steps=1500), False, id="4 % of the time"),
    ],
)
def test_a_single_stall_that_may_be_anything_or_costs_little_is_no_warning(
    case: Case, reported: bool
) -> None:
    assert diagnose_warnings(case) == []
    culprits = [who.rank for found in diagnose(case).findings for who in found.culprits]
    assert culprits == [2] * reported


def test_long_stalls_beside_others_that_recur_are_two_findings() -> None:
    work = healthy(Synthetic(ranks=3, steps=200))
    running = np.sum(list(work.values()), axis=0)
    work["checkpoint"] = np.zeros((200, 3))
    work["checkpoint"][25::20, 0] = 0.2
    work["other"][52, 1] += 3.0
    running[52, 1] += 3.0
    findings = diagnose_warnings(case_of_seconds(work, fields={"cpu_s": running}))
    assert {(one.code, *(who.rank for who in one.culprits)) for one in findings} == {
        ("checkpoint-stall", 0),
        ("straggler-transient", 1),
    }


def test_a_rank_short_of_cores_that_stalls_in_another_phase_has_two_findings() -> None:
    work = healthy(Synthetic(ranks=2, steps=STEPS))
    work["backward"][:, 1] += 0.02
    work["other"][10::20, 1] += 0.3
    around = {0: ProcessLoad(queued=0.01), 1: ProcessLoad(queued=0.4)}
    findings = diagnose_warnings(sampled(on_host(case_of_seconds(work)), around))
    assert {one.code for one in findings} == {"straggler-host", "straggler-transient"}
    assert {who.rank for one in findings for who in one.culprits} == {1}


def test_two_ranks_are_enough_for_few_stalls() -> None:
    (finding,) = diagnose_warnings(few((50, 1, 3.0), (110, 1, 2.0), ranks=2))
    assert (finding.code, [culprit.rank for culprit in finding.culprits]) == (
        "straggler-transient",
        [1],
    )
