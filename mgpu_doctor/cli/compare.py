"""`mgpu-doctor compare`: recordings side by side."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mgpu_doctor.cli.diagnose import recording
from mgpu_doctor.cli.options import FILE, Argument, Verb
from mgpu_doctor.cli.terminal_output import NOTHING_EXAMINED, colour, leave, put, unicode, width
from mgpu_doctor.launch.messages import print_message

if TYPE_CHECKING:
    from mgpu_doctor.analysis.comparing.comparison import Comparison, LeftOut
    from mgpu_doctor.case.model import Case

MOST = 64
"""Recordings that are compared at once."""


def below(folder: Path) -> list[Path]:
    """The recordings in a folder of them, by name."""
    from mgpu_doctor.recording.home import is_recording

    try:
        return sorted(one for one in folder.iterdir() if is_recording(one))
    except OSError:
        return []


def compare_recordings(folders: Sequence[Path]) -> Comparison | tuple[LeftOut, ...]:
    """The comparison of these recordings, or why there is none."""
    from mgpu_probes.outside.untrusted_files import within_budget

    from mgpu_doctor.analysis.comparing.comparison import compare
    from mgpu_doctor.cli.terminal_output import telling

    def case(name: str, folder: Path) -> Case | str:
        tell(f"reading {name}")
        return _case(folder)

    with telling() as tell, within_budget():
        return compare(
            (name, case(name, one)) for name, one in zip(names(folders), folders, strict=True)
        )


def _case(folder: Path) -> Case | str:
    """Or why it cannot be read."""
    from mgpu_doctor.case.recording_case import NotARecording, load_recording

    try:
        return load_recording(folder)
    except NotARecording as error:
        return str(error)
    except OSError as error:
        return f"it cannot be read ({error.strerror})"


def names(folders: Sequence[Path]) -> list[str]:
    """The folders' own names, or as much of their paths as tells them apart."""
    whole = [folder.resolve() for folder in folders]
    for parts in (1, 2):
        short = ["/".join(folder.parts[-parts:]) for folder in whole]
        if len(set(short)) == len(short):
            return short
    return [str(folder) for folder in whole]


def text(found: Comparison) -> str:
    """As standard output can show it."""
    from mgpu_doctor.report import comparison_terminal

    out = sys.stdout
    return comparison_terminal.render_comparison(
        found, width=width(out), colour=colour(out), unicode=unicode(out)
    )


def show(found: Comparison) -> None:
    put(text(found))


ENDINGS = (".html", ".md", ".json")
REGRESSION, WRONG_USAGE = 1, 2
MOST_PERCENT = 1000.0


@click.command(cls=Verb)
@click.argument(
    "references",
    cls=Argument,
    nargs=-1,
    required=True,
    metavar="RECORDING...",
    told="Two or more recordings: a folder, an id, `latest`, or a folder that contains several. "
    "The others are compared with the first.",
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
    help="Exit with 1 if a run is certainly slower than the first for the same work by more than "
    "PERCENT, such as 5%.",
)
def compare(
    references: tuple[str, ...], as_json: bool, output: Path | None, regression: str | None
) -> None:
    """Compare runs: rank counts, strategies, or before and after a change.

    Differences are reported only if noise cannot explain them. Exit code: 0 compared, 1 a
    regression beyond --fail-on-regression, 2 wrong usage, 3 nothing to compare.

    \b
    Examples:
      mgpu-doctor compare runs/before runs/after
      mgpu-doctor compare runs/1-rank runs/2-ranks runs/4-ranks -o scaling.html
      mgpu-doctor compare sweep/ --json
      mgpu-doctor compare baseline latest --fail-on-regression 5%
    """
    if output is not None and output.suffix.lower() not in ENDINGS:
        leave(f"{output} must end in .html, .md or .json.", WRONG_USAGE)
    limit = None if regression is None else _share(regression)
    found = compare_recordings(_folders(references))
    if isinstance(found, tuple):
        leave(_nothing(found), NOTHING_EXAMINED)
    put(_rendered(found, ".json") if as_json else text(found))
    if output is not None:
        _write(output, _rendered(found, output.suffix.lower()))
    if limit is not None:
        _judge(found, limit)


def _share(percent: str) -> float:
    number = re.fullmatch(r"\s*(\d{1,4}(?:\.\d{1,6})?)\s*%?\s*", percent, re.ASCII)
    if number is None or float(number[1]) > MOST_PERCENT:
        leave(f"--fail-on-regression takes a percentage such as 5%, not {percent}.", WRONG_USAGE)
    return float(number[1]) / 100


def _folders(references: Sequence[str]) -> list[Path]:
    from mgpu_doctor.recording.home import find, runs

    found: dict[Path, Path] = {}
    for reference in references:
        several: list[Path] = []
        if find(reference) is None:
            kept = Path(reference) if Path(reference).is_dir() else runs() / reference
            several = below(kept)
        for folder in several or [recording(reference)]:
            found.setdefault(folder.resolve(), folder)
    if len(found) < 2:
        leave("name two recordings or more, or a folder that holds several.", WRONG_USAGE)
    if len(found) > MOST:
        leave(f"{len(found)} recordings are too many: name {MOST} at most.", WRONG_USAGE)
    return list(found.values())


def _nothing(left_out: tuple[LeftOut, ...]) -> str:
    from mgpu_doctor.report.text import line

    reasons = "; ".join(f"{line(one.name)}: {line(one.reason)}" for one in left_out[:3])
    more = f"; and {len(left_out) - 3} more" if left_out[3:] else ""
    return f"fewer than two of the runs can be compared ({reasons.rstrip('.')}{more})."


def _rendered(found: Comparison, ending: str) -> str:
    from mgpu_doctor.report import comparison_html, comparison_json, comparison_markdown

    if ending == ".html":
        return comparison_html.render_comparison_html(found)
    return (
        comparison_json.render(found)
        if ending == ".json"
        else comparison_markdown.render_comparison_markdown(found)
    )


def _write(output: Path, words: str) -> None:
    from mgpu_doctor.recording.write import write_whole

    try:
        write_whole(output, words.encode())
    except OSError as error:
        leave(f"{output} cannot be written ({error.strerror}).", WRONG_USAGE)
    print_message(f"the comparison is in {output}")


def _judge(found: Comparison, limit: float) -> None:
    """Leaves with 1 for a regression, and with 3 where a run could not be held against the first:
    a check that could not be made has not passed."""
    from mgpu_doctor.formatting import format_share
    from mgpu_doctor.report.comparison_text import letter

    if found.left_out or any(one.whole is None for one in found.pairs):
        leave("not every run could be compared with the first.", NOTHING_EXAMINED)
    slower = [letter(pair.second) for pair in found.pairs if pair.slower_by_more_than(limit)]
    if slower:
        leave(f"{', '.join(slower)} slower than A by more than {format_share(limit)}.", REGRESSION)
    print_message(f"nothing shown to be slower than A by {format_share(limit)}.")
