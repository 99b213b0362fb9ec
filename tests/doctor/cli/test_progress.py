"""Progress of a verb on a terminal: one line, harmless, erased at the end."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mgpu_doctor.cli import app
from mgpu_doctor.cli.terminal_output import ERASE, progress_line
from tests.support.memory_snapshots import FULL, written
from tests.support.recordings import HEALTHY, recording

Shown = Callable[[], list[str]]


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Shown:
    """Begins to watch, and gives what stood on the line, one after the other."""
    screen = Screen()

    def lines() -> list[str]:
        monkeypatch.setattr(sys, "stderr", screen)
        monkeypatch.setenv("COLUMNS", "80")
        return screen.getvalue().split(ERASE)

    return lines


@pytest.mark.parametrize("subject", ["s.pickle", "train.log", "run"])
def test_diagnose_says_what_it_reads(tmp_path: Path, shown: Shown, subject: str) -> None:
    written(tmp_path / "s.pickle", *FULL)
    (tmp_path / "train.log").write_text("step 1\n")
    recording(tmp_path / "run", [HEALTHY])
    shown()
    app.main(["diagnose", str(tmp_path / subject)], standalone_mode=False)
    assert f"mgpu-doctor: reading {subject} …" in shown()
    assert shown()[-1] == ""


def test_report_and_compare_say_what_they_read(tmp_path: Path, shown: Shown) -> None:
    first = str(recording(tmp_path / "first", [HEALTHY]))
    second = str(recording(tmp_path / "second", [HEALTHY]))
    shown()
    app.main(["report", first], standalone_mode=False)
    assert "mgpu-doctor: examining first …" in shown()
    app.main(["compare", first, second], standalone_mode=False)
    assert "mgpu-doctor: reading second …" in shown()


def test_a_strange_name_stays_on_its_line(shown: Shown) -> None:
    shown()
    with progress_line() as tell:
        tell("reading \x1b[2J\nbad" + "x" * 200)
    (_, line, last) = shown()
    assert line.isprintable()
    assert len(line) < 80
    assert last == ""


def test_nothing_is_reported_into_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_line() as tell:
        tell("reading")
    assert capsys.readouterr().err == ""
