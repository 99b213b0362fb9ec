"""The verb `compare`: its subjects, exit codes and output."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest
from click.testing import CliRunner

from mgpu_doctor.cli import app
from tests.support.recordings import HEALTHY, SLOW_INPUT, WAITING, recording

run = CliRunner()


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "home"
    monkeypatch.setenv("MGPU_DOCTOR_HOME", str(folder))
    return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`before` and `again` are equal, `slow` takes twice as long, `brief` has few steps."""
    folder = tmp_path_factory.mktemp("runs")
    recording(folder / "before", [HEALTHY] * 2)
    recording(folder / "again", [HEALTHY] * 2)
    recording(folder / "slow", [WAITING, SLOW_INPUT])
    return folder


def test_two_runs_are_held_against_each_other(runs: Path) -> None:
    done = run.invoke(app, ["compare", str(runs / "before"), str(runs / "slow")])
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines()[0].startswith("! B is slower than A: 78 % more time")
    assert "A before" in done.stdout
    assert "\x1b" not in done.stdout, "no colour into a pipe"


def test_a_folder_of_recordings_and_ids_are_taken(runs: Path, home: Path) -> None:
    recording(home / "runs" / "kept", [HEALTHY])
    done = run.invoke(app, ["compare", str(runs), "kept", "latest", "--json"])
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert [run["name"] for run in document["runs"]] == ["again", "before", "slow", "kept"]
    assert [run["ranks"] for run in document["runs"]] == [2, 2, 2, 1]
    assert document["pairs"][0]["change"] == "no difference shown"
    assert document["scaling"]["growth"] == "weak"


@pytest.mark.parametrize(
    ("limit", "second", "code", "expected"),
    [
        ("5%", "slow", 1, "slower than A by more than 5 %: B."),
        ("100%", "slow", 0, "no run is certainly slower than A by more than 100 %"),
        ("5", "again", 0, "no run is certainly slower"),
        ("5%", "empty", 3, "fewer than two"),
        ("five", "slow", 2, "a percentage such as 5%"),
        ("nan", "slow", 2, "a percentage"),
        ("-1%", "slow", 2, "a percentage"),
    ],
)
def test_a_regression_fails(
    runs: Path, tmp_path: Path, *, limit: str, second: str, code: int, expected: str
) -> None:
    other = runs / second if second != "empty" else recording(tmp_path / "empty", [])
    options = [str(runs / "before"), str(other), "--fail-on-regression", limit]
    done = run.invoke(app, ["compare", *options])
    assert done.exit_code == code, done.output
    assert expected in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_run_that_could_not_be_compared_is_no_pass(runs: Path, tmp_path: Path) -> None:
    few = recording(tmp_path / "few", [HEALTHY] * 2, steps=15)
    none = recording(tmp_path / "none", [])
    for third in (few, none):
        words = [str(runs / "before"), str(runs / "again"), str(third)]
        assert run.invoke(app, ["compare", *words]).exit_code == 0
        done = run.invoke(app, ["compare", *words, "--fail-on-regression", "5%"])
        assert done.exit_code == 3


def test_wrong_usage_exits_2(runs: Path) -> None:
    one = str(runs / "before")
    assert run.invoke(app, ["compare"]).exit_code == 2
    for words in ([one], [one, one], [one, str(runs / "again"), "-o", "x.pdf"]):
        done = run.invoke(app, ["compare", *words])
        assert done.exit_code == 2
        assert (done.stdout, done.stderr.count("\n")) == ("", 1)


@pytest.mark.parametrize("subject", ["absent", "latest", "/dev/null"])
def test_nothing_to_compare_exits_3_and_says_why(runs: Path, subject: str) -> None:
    done = run.invoke(app, ["compare", str(runs / "before"), subject])
    assert done.exit_code == 3
    assert (done.stdout, done.stderr.count("\n")) == ("", 1)
    assert done.stderr.startswith("mgpu-doctor: ")


@pytest.mark.parametrize(
    ("ending", "start"), [(".html", "<!DOCTYPE html>"), (".md", "## ! B"), (".json", "{")]
)
def test_it_is_written_beside_the_table(
    runs: Path, tmp_path: Path, ending: str, start: str
) -> None:
    file = tmp_path / f"out{ending}"
    done = run.invoke(app, ["compare", str(runs / "before"), str(runs / "slow"), "-o", str(file)])
    assert done.exit_code == 0, done.output
    assert file.read_text(encoding="utf-8").startswith(start)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert "B is slower" in done.stdout
    assert os.uname().nodename not in file.read_text(encoding="utf-8")


def test_where_it_cannot_be_written_exits_2(runs: Path, tmp_path: Path) -> None:
    words = [str(runs), "-o", str(tmp_path / "absent" / "x.md")]
    done = run.invoke(app, ["compare", *words])
    assert done.exit_code == 2
    assert "cannot be written" in done.stderr
