"""Trying a finding's fixes from the dashboard: it asks, runs `treat`, and shows its result."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from mgpu_doctor.case.model import Outcome, Subject
from mgpu_doctor.findings import Diagnosis
from mgpu_doctor.recording import layout
from mgpu_doctor.tui.jobs.trial_screen import (
    NO_TREATMENT,
    NOT_RECORDED,
    TrialScreen,
    offer_trials,
)
from mgpu_doctor.tui.keys import READONLY
from tests.support import diagnoses
from tests.support.screen_app import ScreenApp
from tests.support.screens import GOLDEN_SIZE, check_screen, screen_text, until

WORDS = ("treat", "/runs/4711", "--only", "loader-workers")
JOB = ("python", "train.py", "--name", "two words\x1b[31m")
"""As a stranger may have recorded it."""
PRINTS = (sys.executable, "-c", "import sys; print('tried', *sys.argv[1:])")
WAITS = (
    sys.executable,
    "-c",
    "import time\ntry:\n    time.sleep(600)\nexcept KeyboardInterrupt:\n    print('so far')",
)


async def test_nothing_is_started_before_yes_and_its_result_is_shown() -> None:
    app = ScreenApp(TrialScreen(WORDS, JOB, still_runs=False, program=PRINTS))
    async with app.run_test(size=GOLDEN_SIZE) as pilot:
        await until(pilot, lambda: "y: try it" in screen_text(app), "the question")
        await check_screen(pilot, "trial")
        await pilot.press("ctrl+y", "y")
        await until(pilot, lambda: f"tried {' '.join(WORDS)}" in screen_text(app), "the result")
        await pilot.press("escape")
        await until(pilot, lambda: app.results == [True], "the way back")
    assert app.copied == [f"mgpu-doctor {' '.join(WORDS)}"]


async def test_ending_the_trials_keeps_what_was_measured() -> None:
    app = ScreenApp(TrialScreen(WORDS, JOB, still_runs=False, program=WAITS))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("y")
        await until(pilot, lambda: "trying, for 1" in screen_text(app), "the trials")
        await pilot.press("escape")
        await until(pilot, lambda: "so far" in screen_text(app), "what was measured")


async def test_a_job_that_still_runs_is_left_alone() -> None:
    app = ScreenApp(TrialScreen(WORDS, JOB, still_runs=True, program=PRINTS))
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: "The job still runs." in screen_text(app), "the reason")
        await pilot.press("y", "escape")
        await until(pilot, lambda: app.results == [False], "the way back")
        assert "tried" not in screen_text(app)


def finding(fix: str, *, subject: str = "recording") -> Diagnosis:
    made = diagnoses.straggler(outcome=Outcome.COMPLETED)
    first = made.findings[0]
    return replace(
        made,
        findings=(replace(first, fixes=(replace(first.fixes[0], id=fix),)),),
        case=replace(made.case, subject=Subject(subject, "/runs/4711")),
    )


@pytest.mark.parametrize(
    ("diagnosis", "readonly", "answer"),
    [
        (finding("compile"), True, READONLY),
        (finding("check-shard"), False, NO_TREATMENT),
        (finding("compile", subject="process"), False, NOT_RECORDED),
        (finding("compile"), False, None),
    ],
    ids=["readonly", "nothing to try", "not recorded", "offered"],
)
async def test_what_cannot_be_tried_is_one_sentence(
    diagnosis: Diagnosis, readonly: bool, answer: str | None
) -> None:
    app = ScreenApp(TrialScreen(WORDS, JOB, still_runs=True))
    async with app.run_test(size=(120, 24), notifications=True) as pilot:
        await pilot.press("escape")
        offer_trials(app, lambda _: None, diagnosis, diagnosis.findings[0], readonly=readonly)
        shown = answer or "mgpu-doctor treat /runs/4711 --only compile"
        await until(pilot, lambda: shown[:40] in screen_text(app), "the answer")


@pytest.mark.parametrize("ended", [False, True])
async def test_a_job_that_ran_at_the_moment_of_a_replay_can_be_tried(
    tmp_path: Path, ended: bool
) -> None:
    if ended:
        (tmp_path / layout.END).write_text("{}")
    made = finding("compile")
    job = replace(made.case.job, outcome=Outcome.RUNNING)
    case = replace(made.case, job=job, subject=Subject("recording", str(tmp_path)))
    app = ScreenApp(TrialScreen(WORDS, JOB, still_runs=True))
    async with app.run_test(size=(120, 24)) as pilot:
        await pilot.press("escape")
        shown = replace(made, case=case)
        offer_trials(app, lambda _: None, shown, made.findings[0], readonly=False)
        answer = "y: try it" if ended else "The job still runs."
        await until(pilot, lambda: answer in screen_text(app), "the answer")
