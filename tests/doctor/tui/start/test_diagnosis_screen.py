"""The diagnosis page: progress, the text, failures in one sentence, saving."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from textual.containers import VerticalScroll
from textual.widgets import Input

from mgpu_doctor.case.model import Outcome
from mgpu_doctor.examine.live_targets import Tell
from mgpu_doctor.examine.subjects import UnknownSubject
from mgpu_doctor.findings import Diagnosis
from mgpu_doctor.tui.jobs import diagnosis_screen
from mgpu_doctor.tui.jobs.diagnosis_screen import DiagnosisScreen, NotSavedError, examination
from tests.support import diagnoses
from tests.support.recordings import SLOW_INPUT, WAITING, recording
from tests.support.screen_app import ScreenApp
from tests.support.screens import GOLDEN_SIZE, check_sizes, screen_text, until


def pretend(subject: str, tell: Tell) -> Diagnosis:
    assert subject == "4711"
    tell("4 ranks seen; looking again")
    return diagnoses.straggler(outcome=Outcome.RUNNING)


async def test_diagnosis_page() -> None:
    app = ScreenApp(DiagnosisScreen("4711", pretend))
    async with app.run_test(size=GOLDEN_SIZE) as pilot:
        await until(pilot, lambda: "straggler-input" in screen_text(app), "the diagnosis")
        await until(pilot, lambda: "esc close" in screen_text(app), "the footer")
        await check_sizes(pilot, "diagnosis")


async def test_it_scrolls_and_closes() -> None:
    app = ScreenApp(DiagnosisScreen("4711", pretend))
    async with app.run_test(size=(80, 12)) as pilot:
        await until(pilot, lambda: "straggler-input" in screen_text(app), "the diagnosis")
        page = app.screen.query_one(VerticalScroll)
        await pilot.press("end")
        await until(pilot, lambda: page.scroll_y == page.max_scroll_y > 0, "its end")
        await pilot.press("escape")
        await until(pilot, lambda: app.results == [None], "the way back")


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (UnknownSubject("the job ended while it was looked at."), "the job ended while"),
        (RuntimeError("[b]odd[/b]"), "the diagnosis failed (RuntimeError: [b]odd[/b])."),
    ],
    ids=["refused", "crashed"],
)
async def test_what_fails_is_one_sentence(error: Exception, sentence: str) -> None:
    def fail(subject: str, tell: Tell) -> Diagnosis:
        del subject, tell
        raise error

    app = ScreenApp(DiagnosisScreen("4711", fail))
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: sentence in screen_text(app), "the sentence")
        await pilot.press("s")
        assert not app.screen.query_one(Input).display


def test_a_recording_is_examined_as_diagnose_does(tmp_path: Path) -> None:
    folder = recording(tmp_path / "r", [SLOW_INPUT if rank == 2 else WAITING for rank in range(4)])
    told: list[str] = []
    diagnosis = examination()(str(folder), told.append)
    assert diagnosis.findings[0].code == "straggler-input"
    with pytest.raises(UnknownSubject):
        examination()(str(tmp_path / "none"), told.append)


async def test_saving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    app = ScreenApp(DiagnosisScreen("4711", pretend))
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: "straggler-input" in screen_text(app), "the diagnosis")
        await pilot.press("s")
        name = app.screen.query_one(Input)
        await until(pilot, lambda: name.has_focus and name.value.endswith(".html"), "a name")
        await pilot.press("enter")
        await until(pilot, lambda: "the report is in" in screen_text(app), "the report")
        (file,) = tmp_path.iterdir()
        assert file.read_text().startswith("<!DOCTYPE html>")
        file.write_text("mine")

        await pilot.press("s", "enter")
        await until(pilot, lambda: "overwrite it? y: yes" in screen_text(app), "the question")
        await pilot.press("escape")
        assert file.read_text() == "mine"
        assert app.results == []
        await pilot.press("y")
        assert file.read_text() == "mine"
        await pilot.press("s", "enter")
        await until(pilot, lambda: "overwrite it? y: yes" in screen_text(app), "the question")
        await pilot.press("y")
        await until(pilot, lambda: file.read_text() != "mine", "the report")

        await pilot.press("s")
        await until(pilot, lambda: name.has_focus, "the name")
        name.value = "report.pdf"
        await pilot.press("enter")
        await until(pilot, lambda: "must end in .html, .md or .json" in screen_text(app), "why not")
        name.value = "no/such/folder.json"
        await pilot.press("enter")
        await until(pilot, lambda: "cannot be written (No such file" in screen_text(app), "why not")
        name.value = "report.json"
        await pilot.press("enter")
        await until(pilot, (tmp_path / "report.json").exists, "the report")
    assert json.loads((tmp_path / "report.json").read_text())["findings"]


@pytest.mark.parametrize("ending", [".html", ".md", ".json"])
def test_reports_are_private_and_never_replace_a_file_unasked(ending: str, tmp_path: Path) -> None:
    path = diagnosis_screen.check(str(tmp_path / f"x{ending}"))
    diagnosis_screen.save(diagnoses.hang(), path, overwrite=False)
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(NotSavedError, match="there already"):
        diagnosis_screen.save(diagnoses.hang(), path, overwrite=False)
    diagnosis_screen.save(diagnoses.hang(), path, overwrite=True)


@pytest.mark.parametrize("name", ["", ".html", "report", "a.txt"])
def test_names_that_say_no_form_are_refused(name: str) -> None:
    with pytest.raises(NotSavedError):
        diagnosis_screen.check(name)


def test_a_hostile_job_gives_a_harmless_name() -> None:
    name = diagnosis_screen.default_name(diagnoses.failed())
    assert "/" not in name
    assert name.endswith(".html")
