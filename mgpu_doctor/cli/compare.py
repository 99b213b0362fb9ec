"""`mgpu-doctor compare`: recordings side by side."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mgpu_doctor.cli import compared
from mgpu_doctor.cli.examined import recording
from mgpu_doctor.cli.output import NOTHING_EXAMINED, leave, put
from mgpu_doctor.cli.verb import FILE, Argument, Verb
from mgpu_doctor.launch.say import say

if TYPE_CHECKING:
    from mgpu_doctor.analysis.comparing.comparison import Comparison, LeftOut

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
    told="Two or more: a recording's folder, its id, `latest`, or a folder that holds several. The "
    "first is what the others are held against.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object (docs/compare.schema.json).")
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
    help="Exit with 1 if a run takes longer than the first for the same work, by more than this "
    "for certain: 5%.",
)
def compare(
    references: tuple[str, ...], as_json: bool, output: Path | None, regression: str | None
) -> None:
    """Hold runs side by side: rank counts, strategies, before and after a change.

    Differences are told only where noise cannot explain them. Exit code: 0 compared, 1 a
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
    found = compared.compare(_folders(references))
    if isinstance(found, tuple):
        leave(_nothing(found), NOTHING_EXAMINED)
    put(_rendered(found, ".json") if as_json else compared.text(found))
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
            several = compared.below(kept)
        for folder in several or [recording(reference)]:
            found.setdefault(folder.resolve(), folder)
    if len(found) < 2:
        leave("name two recordings or more, or a folder that holds several.", WRONG_USAGE)
    if len(found) > compared.MOST:
        leave(f"{len(found)} recordings are too many: name {compared.MOST} at most.", WRONG_USAGE)
    return list(found.values())


def _nothing(left_out: tuple[LeftOut, ...]) -> str:
    from mgpu_doctor.report.text import line

    reasons = "; ".join(f"{line(one.name)}: {line(one.reason)}" for one in left_out[:3])
    more = f"; and {len(left_out) - 3} more" if left_out[3:] else ""
    return f"fewer than two of the runs can be compared ({reasons.rstrip('.')}{more})."


def _rendered(found: Comparison, ending: str) -> str:
    from mgpu_doctor.report.compared import html, json, markdown

    if ending == ".html":
        return html.render(found)
    return json.render(found) if ending == ".json" else markdown.render(found)


def _write(output: Path, words: str) -> None:
    from mgpu_doctor.recording.write import write_whole

    try:
        write_whole(output, words.encode())
    except OSError as error:
        leave(f"{output} cannot be written ({error.strerror}).", WRONG_USAGE)
    say(f"the comparison is in {output}")


def _judge(found: Comparison, limit: float) -> None:
    """Leaves with 1 for a regression, and with 3 where a run could not be held against the first:
    a check that could not be made has not passed."""
    from mgpu_doctor.report.compared.words import letter
    from mgpu_doctor.report.text import percent

    if found.left_out or any(one.whole is None for one in found.pairs):
        leave("not every run could be held against the first.", NOTHING_EXAMINED)
    slower = [letter(one.second) for one in found.pairs if one.slower_by_more_than(limit)]
    if slower:
        leave(f"{', '.join(slower)} slower than A by more than {percent(limit)}.", REGRESSION)
    say(f"nothing shown to be slower than A by {percent(limit)}.")
