"""`mgpu-doctor compare`: how the speed of recorded runs differs."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mgpu_doctor.cli.completers import complete_recording
from mgpu_doctor.cli.options import FILE, Argument, Verb
from mgpu_doctor.cli.terminal_output import (
    NOTHING_EXAMINED,
    WRONG_USAGE,
    display_of,
    exit_with,
    print_text,
    progress_line,
    save_text,
)
from mgpu_doctor.launch.messages import print_message

if TYPE_CHECKING:
    from mgpu_doctor.analysis.comparing.comparison import Comparison, LeftOut


def compare_recordings(folders: Sequence[Path]) -> Comparison | tuple[LeftOut, ...]:
    """The comparison of these recordings, or why there is none."""
    from mgpu_doctor.api import verb_requests

    with progress_line() as report_progress:
        return verb_requests.compare_recordings(folders, report_progress)


def render_text(comparison: Comparison) -> str:
    """The comparison as text that standard output can display."""
    from mgpu_doctor.report import comparison_terminal

    return comparison_terminal.render_comparison(comparison, **display_of(sys.stdout))


ENDINGS = (".html", ".md", ".json")
REGRESSION = 1
MAX_PERCENT = 1000.0


@click.command(cls=Verb)
@click.argument(
    "references",
    cls=Argument,
    nargs=-1,
    required=True,
    metavar="RECORDING...",
    shell_complete=complete_recording,
    help_text="Two or more recordings: a folder, an id, `latest`, or a folder that contains "
    "several. The others are compared with the first.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object (docs/compare.schema.json)."
)
@click.option(
    "--output",
    "-o",
    type=FILE,
    metavar="FILE",
    help="Also write FILE: .html, .md or .json.",
)
@click.option(
    "--fail-on-regression",
    "regression",
    metavar="PERCENT",
    help="Exit with 1 if a run certainly takes more than PERCENT longer than the first for the "
    "same work, such as 5%.",
)
def compare(
    references: tuple[str, ...], as_json: bool, output: Path | None, regression: str | None
) -> None:
    """Compare runs: rank counts, strategies, or before and after a change.

    Only differences larger than the noise are reported. Exit code: 0 compared, 1 a regression
    beyond --fail-on-regression, 2 wrong usage, 3 the runs could not be compared.

    \b
    Examples:
      mgpu-doctor compare runs/before runs/after
      mgpu-doctor compare runs/1-rank runs/2-ranks runs/4-ranks -o scaling.html
      mgpu-doctor compare sweep/ --json
      mgpu-doctor compare baseline latest --fail-on-regression 5%
    """
    from mgpu_doctor.api.verb_requests import find_recordings, require_comparison

    if output is not None and output.suffix.lower() not in ENDINGS:
        exit_with(WRONG_USAGE, f"{output} must end in .html, .md or .json.")
    limit = None if regression is None else _parse_share(regression)
    comparison = require_comparison(compare_recordings(find_recordings(references)))
    print_text(_render(comparison, ".json") if as_json else render_text(comparison))
    if output is not None:
        save_text(output, _render(comparison, output.suffix.lower()), "the comparison")
    if limit is not None:
        _exit_on_regression(comparison, limit)


def _parse_share(percent: str) -> float:
    number = re.fullmatch(r"\s*(\d{1,4}(?:\.\d{1,6})?)\s*%?\s*", percent, re.ASCII)
    if number is None or float(number[1]) > MAX_PERCENT:
        exit_with(
            WRONG_USAGE, f"--fail-on-regression takes a percentage such as 5%, not {percent}."
        )
    return float(number[1]) / 100


def _render(comparison: Comparison, ending: str) -> str:
    from mgpu_doctor.report import comparison_html, comparison_json, comparison_markdown

    if ending == ".html":
        return comparison_html.render_comparison_html(comparison)
    return (
        comparison_json.render(comparison)
        if ending == ".json"
        else comparison_markdown.render_comparison_markdown(comparison)
    )


def _exit_on_regression(comparison: Comparison, limit: float) -> None:
    """Exit with 1 for a regression, and with 3 if a run could not be compared with the first: an
    impossible check has not passed."""
    from mgpu_doctor.formatting import format_share
    from mgpu_doctor.report.comparison_text import letter

    if comparison.left_out or any(pair.whole is None for pair in comparison.pairs):
        exit_with(NOTHING_EXAMINED, "not every run could be compared with the first.")
    slower = [letter(pair.second) for pair in comparison.pairs if pair.slower_by_more_than(limit)]
    if slower:
        exit_with(
            REGRESSION, f"slower than A by more than {format_share(limit)}: {', '.join(slower)}."
        )
    print_message(f"no run is certainly slower than A by more than {format_share(limit)}.")
