"""Sessions of trials on simulated jobs: verdicts, their order, the budget, and placebos."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from mgpu_doctor.advice.treatment_catalogue import TREATMENTS
from mgpu_doctor.analysis.trials.paired_effect import FALSE_HELPS
from mgpu_doctor.analysis.trials.trial_verdict import Verdict
from mgpu_doctor.treat.trial_outcome import Outcome
from mgpu_doctor.treat.trial_session import BaselineError, Session
from tests.support.simulated_trials import CRASH, MEMORY, NOT_APPLIED, SimulatedJob

RECORDED = Path(__file__).parents[2] / "recorded" / "treat"
NAMES = tuple(islice(TREATMENTS, 10))


def session(job: SimulatedJob, budget: float = 3600.0) -> Session:
    made = Session(job.run, budget=budget, steps=60, clock=job.clock, report=lambda *_: None)
    made.measure_baseline()
    return made


def try_all(job: SimulatedJob, names: tuple[str, ...], budget: float = 3600.0) -> list[Outcome]:
    trials = session(job, budget)
    for name in names:
        trials.try_values({name: True})
    trials.settle()
    return trials.outcomes()


def allowed(placebos: int) -> float:
    """False claims of so many placebos at the stated rate, and two standard errors more."""
    expected = placebos * FALSE_HELPS
    return expected + 2 * math.sqrt(expected)


@pytest.mark.parametrize(
    ("between", "within", "alike", "stalls"),
    [
        (0.01, 0.05, 0.5, 0.01),
        (0.05, 0.05, 0.0, 0.0),
        (0.0, 0.3, 0.8, 0.05),
        (0.15, 0.1, 0.3, 0.02),
    ],
)
def test_placebos_are_not_said_to_help_more_often_than_stated(
    between: float, within: float, alike: float, stalls: float
) -> None:
    random = np.random.default_rng(11)
    verdicts = []
    for _ in range(20):
        job = SimulatedJob(
            random, between_runs=between, within_runs=within, alike=alike, stalls=stalls
        )
        verdicts += [outcome.verdict for outcome in try_all(job, NAMES)]
    assert verdicts.count(Verdict.HELPS) <= allowed(len(verdicts))
    assert verdicts.count(Verdict.WORSE) <= allowed(len(verdicts))


def test_a_single_placebo_with_nothing_to_compare_the_noise_with() -> None:
    random = np.random.default_rng(12)
    verdicts = [
        try_all(SimulatedJob(random, between_runs=0.05), ("gc-freeze",))[0].verdict
        for _ in range(200)
    ]
    assert verdicts.count(Verdict.HELPS) <= allowed(len(verdicts))


def test_placebos_in_sessions_drawn_from_real_runs() -> None:
    """Runs of a trainer with 2 ranks, on a machine that other jobs kept busy (benchmarks/treat.py):
    the slowest takes three times as long as the fastest."""
    jobs = json.loads((RECORDED / "plain_runs.json").read_text(encoding="utf-8"))["jobs"]
    recorded = jobs["torch-ddp, busy machine"]
    assert len(recorded) == 12
    random = np.random.default_rng(20)
    verdicts = []
    for _ in range(60):
        job = SimulatedJob(random, recorded=recorded)
        verdicts += [outcome.verdict for outcome in try_all(job, NAMES[:4])]
    assert verdicts.count(Verdict.HELPS) <= allowed(len(verdicts))


def test_what_helps_and_what_hurts_is_found_in_a_noisy_job_that_slows_down() -> None:
    random = np.random.default_rng(13)
    right = 0
    for _ in range(20):
        ratios = {"loader-workers": 0.8, "ddp-bucket-view": 0.88, "gc-freeze": 1.2}
        job = SimulatedJob(random, ratios, drift=0.005)
        outcomes = {next(iter(one.values)): one for one in try_all(job, (*NAMES, "gc-freeze"))}
        saved = outcomes["loader-workers"].saved
        assert saved is not None
        assert saved.low < 0.2 + 0.02
        assert saved.high > 0.2 - 0.02
        right += (
            outcomes["loader-workers"].verdict is Verdict.HELPS
            and outcomes["ddp-bucket-view"].verdict is Verdict.HELPS
            and outcomes["gc-freeze"].verdict is Verdict.WORSE
        )
    assert right >= 18


def test_what_two_blocks_cannot_show_is_tried_again_with_what_is_left_of_the_budget() -> None:
    """Equal runs differ by 12 %, and the treatment saves 20 %."""
    at_first = with_the_rest = 0
    for seed in range(20):
        job = SimulatedJob(
            np.random.default_rng(seed), {"ddp-no-search": 0.8}, between_runs=0.12, stalls=0.0
        )
        trials = session(job)
        at_first += trials.try_values({"ddp-no-search": True}).verdict is Verdict.HELPS
        trials.settle()
        (outcome,) = trials.outcomes()
        with_the_rest += outcome.verdict is Verdict.HELPS
        assert outcome.runs <= 16
    assert at_first <= 8
    assert with_the_rest >= 14


def test_time_for_what_helps_together_is_kept() -> None:
    """Each run takes 10 s: the job twice, two blocks, and no time for two more and the others."""
    job = SimulatedJob(np.random.default_rng(3), {"ddp-no-search": 0.8}, between_runs=0.15)
    trials = session(job, budget=190.0)
    trials.try_values({"ddp-no-search": True})
    began = job.now
    trials.settle(keeps_time=True)
    assert 190.0 - job.now >= 60.0
    assert (began, job.now) == (80.0, 110.0)
    assert trials.has_time()


def test_a_treatment_that_fails_does_not_fit_or_changes_the_loss() -> None:
    job = SimulatedJob(
        np.random.default_rng(14),
        ratios={"ddp-bucket-view": 0.5},
        failing={"ddp-no-search": CRASH, "loader-prefetch": NOT_APPLIED},
        loss_change={"ddp-bucket-view": 0.1},
    )
    names = ("ddp-no-search", "loader-prefetch", "ddp-bucket-view", "gc-freeze")
    failed, unfit, changed, same = try_all(job, names)
    assert (failed.verdict, failed.reason, failed.runs) == (Verdict.FAILS, CRASH.reason, 0)
    assert (unfit.verdict, unfit.reason) == (Verdict.DOES_NOT_FIT, NOT_APPLIED.reason)
    assert changed.verdict is Verdict.CHANGES_LOSS
    assert changed.loss is not None
    assert changed.loss.difference == pytest.approx(0.1 / 1.5, rel=0.01)
    assert same.verdict is Verdict.NO_DIFFERENCE


def test_losses_of_a_job_without_a_seed_differ_by_themselves() -> None:
    job = SimulatedJob(np.random.default_rng(15), seeded=False)
    assert {one.verdict for one in try_all(job, NAMES)} == {Verdict.NO_DIFFERENCE}


def test_runs_alternate_and_every_treatment_lies_between_two_runs_without_it() -> None:
    job = SimulatedJob(np.random.default_rng(16), between_runs=0.001, within_runs=0.01, stalls=0.0)
    try_all(job, ("loader-workers", "ddp-bucket-view"))
    ran = "".join("A" if not values else next(iter(values))[0] for values in job.ran)
    assert ran == "AAllAddA"


def test_what_can_be_switched_is_switched_within_a_run_that_differs_from_the_others() -> None:
    """Equal runs differ by 20 %: whole runs cannot show a gain of 8 %."""
    right = []
    for seed in range(10):
        job = SimulatedJob(np.random.default_rng(seed), {"gc-freeze": 0.92}, between_runs=0.2)
        trials = session(job)
        outcome = trials.try_values({"gc-freeze": True})
        assert (outcome.switched, outcome.runs, outcome.reason) == (True, len(job.ran) - 2, None)
        assert outcome.saved is not None
        right.append(outcome.verdict is Verdict.HELPS and abs(outcome.saved.share - 0.08) < 0.05)
    assert sum(right) >= 9


@pytest.mark.parametrize("every", [7, 11, 22, 50, 88, 92, 100, 116, 232])
def test_pauses_at_regular_steps_do_not_make_a_placebo_help(every: int) -> None:
    verdicts = [
        try_all(SimulatedJob(np.random.default_rng(seed), pause_every=every), ("gc-freeze",))[
            0
        ].verdict
        for seed in range(40)
    ]
    assert verdicts.count(Verdict.HELPS) <= allowed(len(verdicts))
    assert verdicts.count(Verdict.WORSE) <= allowed(len(verdicts))


def test_a_job_too_short_for_switching_is_tried_in_whole_runs() -> None:
    job = SimulatedJob(np.random.default_rng(21), {"gc-freeze": 0.5}, stalls=0.0, most_steps=100)
    outcome = session(job).try_values({"gc-freeze": True})
    assert (outcome.switched, outcome.runs, outcome.verdict) == (False, 2, Verdict.HELPS)


def test_a_switched_treatment_that_changes_the_loss() -> None:
    job = SimulatedJob(np.random.default_rng(22), loss_change={"autocast-bf16": 0.2})
    outcome = session(job).try_values({"autocast-bf16": True})
    assert (outcome.switched, outcome.verdict) == (True, Verdict.CHANGES_LOSS)
    assert outcome.loss is not None
    assert outcome.loss.spread == 0


def test_the_budget_ends_the_trials_and_keeps_what_was_measured() -> None:
    """Each run takes 10 s: two of the job, and three for the first treatment."""
    job = SimulatedJob(np.random.default_rng(17), {"gc-freeze": 0.5}, stalls=0.0)
    tried, untried = try_all(job, ("gc-freeze", "ddp-bucket-view"), budget=55.0)
    assert tried.verdict is Verdict.HELPS
    assert (untried.verdict, untried.runs) == (Verdict.UNTRIED, 0)
    assert untried.reason == (
        "what is left of the budget is too short for 3 runs of 10 s each; --budget 90s is enough "
        "for the next treatment"
    )
    assert job.now == 50.0


@pytest.mark.parametrize(("budget", "runs"), [(40.0, "ABBA"), (49.0, "ABBA"), (50.0, "AABBA")])
def test_the_first_treatment_is_tried_in_a_budget_of_four_runs(budget: float, runs: str) -> None:
    right = 0
    for seed in range(20):
        job = SimulatedJob(
            np.random.default_rng(seed), {"ddp-no-search": 0.7}, within_runs=0.02, stalls=0.0
        )
        (outcome,) = try_all(job, ("ddp-no-search",), budget)
        assert "".join("B" if values else "A" for values in job.ran) == runs
        right += outcome.verdict is Verdict.HELPS
    assert right >= 18


def test_placebos_in_a_budget_of_one_block() -> None:
    random = np.random.default_rng(24)
    verdicts = [
        try_all(SimulatedJob(random, between_runs=0.05), ("ddp-no-search",), 40.0)[0].verdict
        for _ in range(400)
    ]
    assert verdicts.count(Verdict.HELPS) <= allowed(len(verdicts))


@pytest.mark.parametrize("name", ["gc-freeze", "ddp-no-search"], ids=["switched", "whole runs"])
def test_a_job_that_hangs_does_not_outlast_the_budget(name: str) -> None:
    """Each run takes 10 s: there are 35 s left, and a hang is one after 60 s."""
    job = SimulatedJob(np.random.default_rng(27), hanging={name})
    (outcome,) = try_all(job, (name,), budget=55.0)
    assert (outcome.verdict, job.now) == (Verdict.UNTRIED, 55.0)
    assert outcome.reason == "the budget was used up: it made 0 of 70 steps in time"
    job = SimulatedJob(np.random.default_rng(27), hanging={name})
    (outcome,) = try_all(job, (name,), budget=500.0)
    assert (outcome.verdict, outcome.reason) == (Verdict.FAILS, "it made 0 of 70 steps in time")


def test_a_budget_without_time_for_any_treatment_is_known_after_one_run() -> None:
    job = SimulatedJob(np.random.default_rng(25))
    (outcome,) = try_all(job, ("ddp-no-search",), budget=39.0)
    assert (outcome.verdict, len(job.ran)) == (Verdict.UNTRIED, 1)
    assert outcome.reason is not None
    assert "--budget 60s is enough" in outcome.reason


def test_treatments_that_are_to_save_memory_are_judged_by_it() -> None:
    """One saves a fifth for half as much time again, one saves time alone, and one saves nothing;
    what could be switched while the job runs is not."""
    job = SimulatedJob(
        np.random.default_rng(26),
        {"activation-checkpointing": 1.5, "optimizer-fused": 0.7},
        memory_ratios={"activation-checkpointing": 0.8, "optimizer-zero1": 1.3},
        stalls=0.0,
    )
    trials = Session(
        job.run, budget=1e4, steps=60, clock=job.clock, report=lambda *_: None, by_memory=True
    )
    trials.measure_baseline()
    names = ("activation-checkpointing", "optimizer-fused", "optimizer-zero1")
    saves, faster, more = (trials.try_values({name: True}) for name in names)
    verdicts = [each.verdict for each in (saves, faster, more)]
    assert verdicts == [Verdict.HELPS, Verdict.NO_DIFFERENCE, Verdict.WORSE]
    assert not any(each.switched for each in (saves, faster, more))
    assert saves.memory is not None
    assert saves.memory.before.bytes == pytest.approx(MEMORY, rel=0.02)
    assert saves.memory.after.bytes == pytest.approx(0.8 * MEMORY, rel=0.02)
    assert saves.memory.before.spread is not None
    assert 0 < saves.memory.before.spread < 0.02 * MEMORY
    assert saves.memory.saved.low < 0.2 < saves.memory.saved.high
    assert saves.saved is not None  # the price
    assert saves.saved.share == pytest.approx(-0.5, abs=0.1)
    assert trials.combine(trials.outcomes()) == {"activation-checkpointing": True}


def test_placebos_are_not_said_to_save_memory_more_often_than_stated() -> None:
    verdicts = []
    for seed in range(40):
        job = SimulatedJob(np.random.default_rng(seed))
        trials = Session(
            job.run, budget=1e4, steps=60, clock=job.clock, report=lambda *_: None, by_memory=True
        )
        trials.measure_baseline()
        verdicts += [trials.try_values({name: True}).verdict for name in NAMES]
    assert verdicts.count(Verdict.HELPS) <= allowed(len(verdicts))


def test_a_job_that_fails_now_and_then_is_not_held_against_the_treatment() -> None:
    """Of the first of two blocks, a run with the treatment and the one of the job as it is."""
    job = SimulatedJob(np.random.default_rng(23))
    trials = session(job)
    job.failing_at = {len(job.ran), len(job.ran) + 3}
    outcome = trials.try_values({"ddp-no-search": True})
    assert (outcome.verdict, outcome.runs) == (Verdict.NO_DIFFERENCE, 4)


def test_a_job_that_fails_twice_in_a_row_says_nothing_of_the_treatment() -> None:
    job = SimulatedJob(np.random.default_rng(23))
    trials = session(job)
    job.failing_at = {len(job.ran) + 2, len(job.ran) + 3}
    outcome = trials.try_values({"ddp-no-search": True})
    assert outcome.verdict is Verdict.UNTRIED
    assert outcome.reason == "the job as it is could not be measured again: rank 0 failed"


def test_a_job_that_fails_by_itself_is_not_tried() -> None:
    job = SimulatedJob(np.random.default_rng(18))
    trials = Session(
        lambda values, **given: SimulatedJob(job.random, failing={"gc-freeze": CRASH}).run(
            {"gc-freeze": True, **values}, **given
        ),
        budget=60.0,
        steps=60,
        clock=job.clock,
        report=lambda *_: None,
    )
    with pytest.raises(BaselineError, match="rank 0 failed"):
        trials.measure_baseline()


def test_what_helps_is_combined_without_what_a_better_one_excludes() -> None:
    ratios = {"optimizer-fused": 0.6, "optimizer-foreach": 0.8, "loader-workers": 0.7}
    job = SimulatedJob(np.random.default_rng(19), ratios, stalls=0.0)
    trials = session(job)
    outcomes = [
        trials.try_values({"optimizer-foreach": True}),
        trials.try_values({"optimizer-fused": True}),
        trials.try_values({"loader-workers": 2}),
        trials.try_values({"gc-freeze": True}),
    ]
    saved = outcomes[2].saved
    assert saved is not None
    more = replace(outcomes[2], values={"loader-workers": 4}, saved=replace(saved, share=0.1))
    combined = trials.combine([more, *outcomes])
    assert combined == {"optimizer-fused": True, "loader-workers": 2}
