"""The verb `check`: exit codes, streams, and a table that fits."""

from __future__ import annotations

import json
import re

import pytest
from click.testing import CliRunner

from mgpu_doctor.check import check_report
from mgpu_doctor.check.check_result import Check, CheckedMachine, CheckedResult, Level, Result
from mgpu_doctor.cli import app

run = CliRunner()
LONG = "`sudo sysctl kernel.yama.ptrace_scope=0`, or run `mgpu-doctor` as root: " * 3


def checked(*levels: Level) -> tuple[CheckedResult, ...]:
    return tuple(checked_result(number, level) for number, level in enumerate(levels))


def checked_result(number: int, level: Level) -> CheckedResult:
    result = Result(level, f"said {number}: \x1b[31mred × [b]", LONG if number else "")
    return CheckedResult(Check(f"id-{number}", f"title {number}", lambda _: result), result)


@pytest.mark.parametrize(
    ("levels", "code"),
    [
        ((Level.PASS, Level.NOTE), 0),
        ((Level.PASS, Level.WARN), 1),
        ((Level.FAIL, Level.PASS), 1),
    ],
)
def test_exit_code(monkeypatch: pytest.MonkeyPatch, levels: tuple[Level, ...], code: int) -> None:
    monkeypatch.setattr(check_report, "check_all", lambda _: checked(*levels))
    done = run.invoke(app, ["check"])
    assert done.exit_code == code
    assert "\x1b" not in done.stdout, "no colour into a pipe"
    document = json.loads(run.invoke(app, ["check", "--json"]).stdout)
    assert document["schema"] == "mgpu-doctor/check/1"
    assert [entry["level"] for entry in document["checks"]] == [level.value for level in levels]


@pytest.mark.parametrize("width", [20, 40, 80, 300])
@pytest.mark.parametrize("unicode", [True, False])
def test_no_line_is_longer_than_the_terminal(width: int, unicode: bool) -> None:
    printed = check_report.render_text(checked(*Level), width=width, colour=False, unicode=unicode)
    assert max(len(line) for line in printed.splitlines()) <= max(40, min(width, 100))
    assert printed.isascii() != unicode
    assert "\x1b" not in printed


def test_colours_only_add_to_what_the_marks_tell() -> None:

    every = checked(*Level)
    plain = check_report.render_text(every, width=80, colour=False, unicode=True)
    coloured = check_report.render_text(every, width=80, colour=True, unicode=True)
    assert re.sub(r"\x1b\[[\d;]*m", "", coloured) == plain
    assert all(mark in plain for mark in check_report.MARKS.values())


def test_the_headline_counts() -> None:
    some = check_report.render_text(checked(*Level), width=80, colour=False, unicode=True)
    none = check_report.render_text(checked(Level.PASS), width=80, colour=False, unicode=True)
    assert some.startswith("2 of 4 checks")
    assert "Everything" in none.splitlines()[0]


def test_on_this_machine_it_runs_in_a_moment() -> None:
    done = run.invoke(app, ["check", "--json"])
    document = json.loads(done.stdout)
    assert done.exit_code == (1 if document["improvable"] else 0)
    assert [entry["id"] for entry in document["checks"]] == [
        check.id for check in check_report.CHECKS
    ]
    assert CheckedMachine().root.is_dir()
