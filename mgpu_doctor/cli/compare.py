"""`mgpu-doctor compare`: how the speed of recorded runs differs."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mgpu_doctor.cli.diagnose import find_recording
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
    from mgpu_doctor.case.model import Case

MAX_RECORDINGS = 64
"""Recordings that can be compared at once."""


def find_recordings_in(folder: Path) -> list[Path]:
    """The recordings directly below a folder, sorted by name."""
    from mgpu_doctor.recording.home import is_recording

    try:
        return sorted(path for path in folder.iterdir() if is_recording(path))
    except OSError:
        return []


def compare_recordings(folders: Sequence[Path]) -> Comparison | tuple[LeftOut, ...]:
    """The comparison of these recordings, or why there is none."""
    from mgpu_probes.outside.untrusted_files import within_budget

    from mgpu_doctor.analysis.comparing.comparison import compare

    def load(name: str, folder: Path) -> Case | str:
        report_progress(f"reading {name}")
        return _load_case(folder)

    with progress_line() as report_progress, within_budget():
        return compare(
            (name, load(name, folder))
            for name, folder in zip(shorten_names(folders), folders, strict=True)
        )


def _load_case(folder: Path) -> Case | str:
    """The case of a recording, or why it cannot be read."""
    from mgpu_doctor.case.recording_case import NotARecording, load_recording

    try:
        return load_recording(folder)
    except NotARecording as error:
        return str(error)
    except OSError as error:
        return f"it cannot be read ({error.strerror})"


def shorten_names(folders: Sequence[Path]) -> list[str]:
    """The names of folders, with as many parents as needed to make them different."""
    resolved = [folder.resolve() for folder in folders]
    for parts in (1, 2):
        short = ["/".join(folder.parts[-parts:]) for folder in resolved]
        if len(set(short)) == len(short):
            return short
    return [str(folder) for folder in resolved]


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
    if output is not None and output.suffix.lower() not in ENDINGS:
        exit_with(WRONG_USAGE, f"{output} must end in .html, .md or .json.")
    limit = None if regression is None else _parse_share(regression)
    comparison = compare_recordings(_find_folders(references))
    if isinstance(comparison, tuple):
        exit_with(NOTHING_EXAMINED, _explain_no_comparison(comparison))
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


def _find_folders(references: Sequence[str]) -> list[Path]:
    from mgpu_doctor.recording.home import find, runs

    folders: dict[Path, Path] = {}  # keys: resolved
    for reference in references:
        contained: list[Path] = []
        if find(reference) is None:
            folder_of_runs = Path(reference) if Path(reference).is_dir() else runs() / reference
            contained = find_recordings_in(folder_of_runs)
        for folder in contained or [find_recording(reference)]:
            folders.setdefault(folder.resolve(), folder)
    if len(folders) < 2:
        exit_with(WRONG_USAGE, "name at least two recordings, or a folder that contains several.")
    if len(folders) > MAX_RECORDINGS:
        exit_with(
            WRONG_USAGE, f"{len(folders)} recordings are too many: the limit is {MAX_RECORDINGS}."
        )
    return list(folders.values())


def _explain_no_comparison(left_out: tuple[LeftOut, ...]) -> str:
    from mgpu_doctor.report.text import line

    reasons = "; ".join(
        f"{line(unusable.name)}: {line(unusable.reason)}" for unusable in left_out[:3]
    )
    rest = f"; and {len(left_out) - 3} more" if left_out[3:] else ""
    return f"fewer than two of the runs can be compared ({reasons.rstrip('.')}{rest})."


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
            REGRESSION, f"{', '.join(slower)} slower than A by more than {format_share(limit)}."
        )
    print_message(f"no run is certainly slower than A by more than {format_share(limit)}.")
