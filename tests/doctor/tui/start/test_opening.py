"""What the live screen's keys open, and the screen after that."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from textual.app import App

from mgpu_doctor.live.live_jobs import LiveJobs
from mgpu_doctor.live.unrecorded_job import Outside
from mgpu_doctor.recording.layout import END
from mgpu_doctor.tui.jobs import opening
from mgpu_doctor.tui.jobs.attach_screen import AttachScreen
from mgpu_doctor.tui.jobs.diagnosis_screen import DiagnosisScreen
from mgpu_doctor.tui.jobs.launch_screen import LaunchScreen
from mgpu_doctor.tui.jobs.starting import Started, run_words, start
from mgpu_doctor.tui.jobs.stopping import StopScreen, offer_stop
from tests.support import diagnoses
from tests.support.launching import python, read_json
from tests.support.screens import screen_text, until


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGPU_DOCTOR_HOME", str(tmp_path))


def test_a_recording_is_watched_as_ever_and_a_process_from_outside(tmp_path: Path) -> None:
    assert isinstance(opening.source_of(tmp_path), LiveJobs)
    assert isinstance(opening.source_of(os.getpid()), Outside)


async def test_what_was_started_or_chosen_is_turned_to() -> None:
    turned: list[opening.Job] = []
    app: App[Any] = App()
    async with app.run_test() as pilot:
        opening.open_launch(app, turned.append)
        await until(pilot, lambda: isinstance(app.screen, LaunchScreen), "the form")
        app.screen.dismiss(Started(Path("/runs/x"), 1))
        await until(pilot, lambda: turned == [Path("/runs/x")], "the new job")
        opening.open_attach(app, turned.append, lambda: None)
        await until(pilot, lambda: isinstance(app.screen, AttachScreen), "the list")
        await pilot.press("escape")
        await until(pilot, lambda: not isinstance(app.screen, AttachScreen), "the way back")
    assert turned == [Path("/runs/x")]


async def test_the_diagnosis_is_of_what_is_shown() -> None:
    app: App[Any] = App()
    async with app.run_test() as pilot:
        opening.open_diagnosis(app, diagnoses.hang())
        await until(pilot, lambda: isinstance(app.screen, DiagnosisScreen), "the page")
        await until(pilot, lambda: "does not exist" in screen_text(app), "the reason")


async def test_without_a_job_there_is_nothing_to_diagnose() -> None:
    app: App[Any] = App()
    async with app.run_test(notifications=True) as pilot:
        opening.open_diagnosis(app, None)
        await until(pilot, lambda: "No job is shown" in screen_text(app), "the hint")


def _reads(app: App[Any], told: str) -> bool:
    return told in screen_text(app)


async def test_stopping_is_offered_only_where_it_may_be(tmp_path: Path) -> None:
    app: App[Any] = App()
    async with app.run_test(size=(120, 40), notifications=True) as pilot:
        for subject, readonly, told in (
            ("1", True, "--readonly"),
            (None, False, "No job is shown"),
            (str(tmp_path / "none"), False, "does not say which"),
            (str(2**22 + 1), False, "there is no process"),
        ):
            offer_stop(app, subject, readonly=readonly)
            await until(pilot, partial(_reads, app, told), "the refusal")
            assert not isinstance(app.screen, StopScreen)


async def test_a_job_is_stopped_after_a_yes() -> None:
    one = start(run_words(python("import time; time.sleep(600)")))
    app: App[Any] = App()
    async with app.run_test() as pilot:
        offer_stop(app, str(one.recording))
        await until(pilot, lambda: isinstance(app.screen, StopScreen), "the question")
        await pilot.press("y")
        await until(pilot, lambda: not isinstance(app.screen, StopScreen), "the end")
    assert read_json(one.recording / END)["asked"] == "SIGINT"
