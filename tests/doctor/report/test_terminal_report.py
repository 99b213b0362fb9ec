"""The diagnosis on a terminal: no escape sequences, and no line too wide."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.cells import cell_len

from mgpu_doctor.case.model import Outcome
from mgpu_doctor.findings import Severity
from mgpu_doctor.report import terminal
from mgpu_doctor.report.rank_rows import rows
from tests.support import diagnoses
from tests.support.loops import over

WIDTHS = (60, 80, 120, 200)
GOLDEN = Path(__file__).parents[2] / "recorded" / "terminal"
ANSI = re.compile(r"\x1b\[[0-9;]*m")

everything = over("name", diagnoses.ALL)
at_widths = over("width", WIDTHS)


@everything
@at_widths
def test_as_recorded(name: str, width: int) -> None:
    """Regenerate with MGPU_DOCTOR_TEST_RECORD=1, then look at the difference."""
    text = terminal.render(diagnoses.ALL[name], width=width, colour=False)
    file = GOLDEN / f"{name}-{width}.txt"
    if os.environ.get("MGPU_DOCTOR_TEST_RECORD"):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8")


@everything
@over("width", [20, 40, *WIDTHS])
@over("unicode", [True, False])
def test_no_line_is_too_wide(name: str, width: int, unicode: bool) -> None:
    text = terminal.render(diagnoses.ALL[name], width=width, colour=False, unicode=unicode)
    assert max(map(cell_len, text.splitlines())) <= max(40, width)
    assert text.endswith("\n")
    assert not any(line.endswith(" ") for line in text.splitlines())


@everything
@at_widths
def test_colour_adds_nothing_but_colour(name: str, width: int) -> None:
    coloured = terminal.render(diagnoses.ALL[name], width=width, colour=True)
    plain = terminal.render(diagnoses.ALL[name], width=width, colour=False)
    assert ANSI.search(coloured)
    unstyled = ANSI.sub("", coloured)
    assert [line.rstrip() for line in unstyled.splitlines()] == plain.splitlines()
    assert "\x1b" not in plain


@everything
def test_ascii_is_ascii(name: str) -> None:
    text = terminal.render(diagnoses.ALL[name], width=80, colour=False, unicode=False)
    assert text.isascii()


def test_the_answer_comes_first() -> None:
    lines = terminal.render(diagnoses.straggler(), width=100, colour=False).splitlines()
    assert lines[0].startswith("! rank 2 is slow")
    order = [
        "straggler-input",
        "who ",
        "why ",
        "evidence ",
        "fix ",
        "gain ",
        "rank  state",
        "also ",
    ]
    found = [next(i for i, line in enumerate(lines) if word in line) for word in order]
    assert found == sorted(found)


def test_the_culprit_is_marked_and_its_bar_differs() -> None:
    text = terminal.render(diagnoses.straggler(), width=100, colour=False)
    bars = {
        int(match["rank"]): match["bar"]
        for match in re.finditer(r"^ {2}[▸ ] +(?P<rank>\d+) .* ms  (?P<bar>\S+)$", text, re.M)
    }
    assert set(bars) == {0, 1, 2, 3}
    assert len({len(bar) for bar in bars.values()}) == 1, "one scale for equal steps"
    assert bars[2].count("i") > 10 * bars[0].count("i") > 0
    assert bars[2].count("·") == 0 < bars[0].count("·")
    assert re.search(r"^ {2}▸ +2 ", text, re.M)


def test_a_healthy_job_takes_few_lines() -> None:
    text = terminal.render(diagnoses.healthy(), width=100, colour=False)
    assert text.startswith("✓ nothing wrong found\n")
    assert len(text.splitlines()) <= 4
    assert "devices" in text, "what was not measured is said"


def test_causes_and_gaps_are_counted_and_verbose_lists_them() -> None:
    made = replace(diagnoses.straggler(), unexamined=(diagnoses.NO_DRIVER,) * 2)
    text = terminal.render(made, width=100, colour=False)
    assert "3 other causes ruled out, 1 cause not measured (--verbose)" in text
    assert "not measured 2: devices (--verbose says why)" in text
    full = terminal.render(made, width=100, colour=False, verbose=True)
    assert "ruled out garbage collection, saving, evaluation\n" in full
    assert "not measured its CPU quota\n" in full
    assert "install the driver" in full
    assert "install the driver" not in text


def test_where_nothing_was_found_the_gaps_are_the_answer() -> None:
    made = diagnoses.healthy(Outcome.UNKNOWN)
    assert "install the driver" in terminal.render(made, width=120, colour=False)


def test_one_figure_says_what_is_lost() -> None:
    """What jitter costs besides is a second, larger figure about the same time."""
    straggler, healthy = (
        replace(made, waste_fraction=0.6, ideal_step_seconds=0.02)
        for made in (diagnoses.straggler(), diagnoses.healthy())
    )
    text = terminal.render(straggler, width=100, colour=False)
    assert "44 % less" in text
    assert "60 %" not in text
    alone = terminal.render(healthy, width=100, colour=False)
    assumed = "if no rank ever waited for a slower one, a step would take 20 ms, 60 % less"
    assert assumed in " ".join(alone.split())


def test_a_running_job_says_so() -> None:
    assert "still running" in terminal.render(
        diagnoses.healthy(Outcome.RUNNING), width=100, colour=False
    )
    assert "still running" in terminal.render(
        diagnoses.straggler(outcome=Outcome.RUNNING), width=100, colour=False
    )


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.KILLED, Outcome.HUNG, Outcome.UNKNOWN])
def test_what_ended_badly_is_never_called_fine(outcome: Outcome) -> None:
    text = terminal.render(diagnoses.healthy(outcome), width=100, colour=False)
    assert text.startswith("? ")
    assert "nothing wrong" not in text


def test_what_was_not_measured_is_never_called_fine() -> None:
    unmeasured = [diagnoses.rank(number, phases={}, last_step=None) for number in range(2)]
    text = terminal.render(diagnoses.diagnosis(unmeasured), width=100, colour=False)
    assert text.startswith("? 2 ranks seen, but no step was measured")


def test_five_hundred_ranks_fit_on_a_screen() -> None:
    text = terminal.render(diagnoses.ALL["straggler-512"], width=100, colour=False)
    assert len(text.splitlines()) < 40
    assert "511 others" in text


def test_a_rank_that_the_headline_names_without_a_warning_has_a_row() -> None:
    slow = diagnoses.straggler(512, 77)
    noted = tuple(replace(finding, severity=Severity.INFO) for finding in slow.findings)
    made = replace(slow, findings=noted)
    text = terminal.render(made, width=100, colour=False)
    assert text.startswith("i no warning; worth knowing: rank 77 ")
    assert "511 others" in text
    assert [row.label for row in rows(made, 16)] == ["77", "511 others"]


def test_hundreds_of_dead_ranks_fit_on_a_screen() -> None:
    made = diagnoses.straggler(512, 77)
    ranks = tuple(
        replace(rank, state="dead", signal=9 if rank.rank and rank.rank % 3 else 15)
        for rank in made.ranks
    )
    text = terminal.render(replace(made, ranks=ranks), width=100, colour=False)
    assert len(text.splitlines()) < 60
