"""`mgpu-doctor report`: the file that people attach to the ticket."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mgpu_doctor.cli.diagnose import examine, recording
from mgpu_doctor.cli.options import FILE, Argument, Verb
from mgpu_doctor.cli.terminal_output import leave, put, unswept
from mgpu_doctor.launch.messages import print_message

if TYPE_CHECKING:
    from mgpu_doctor.findings import Diagnosis

ENDINGS = (".html", ".md", ".json")
WRONG_USAGE = 2


@click.command(cls=Verb)
@click.argument(
    "reference",
    cls=Argument,
    metavar="RECORDING",
    told="A recording's folder, its id, or `latest`.",
)
@click.option(
    "--output",
    "-o",
    type=FILE,
    metavar="FILE",
    help="Write to FILE: .html, .md or .json. By default, print Markdown.",
)
@click.option(
    "--no-redact",
    is_flag=True,
    help="Keep names, addresses and paths in Markdown; HTML always has them.",
)
@unswept()
def report(reference: str, output: Path | None, no_redact: bool) -> None:
    """Write a report of a job: one file with the diagnosis and its evidence.

    \b
    Examples:
      mgpu-doctor report latest -o report.html
      mgpu-doctor report runs/today -o report.md
      mgpu-doctor report latest | gh issue create --title "slow rank" --body-file -
    """
    ending = ".md" if output is None else output.suffix.lower()
    if ending not in ENDINGS:
        leave(f"{output} must end in .html, .md or .json.", WRONG_USAGE)
    from mgpu_doctor.cli.terminal_output import telling

    diagnosis = examine(recording(reference))
    with telling() as tell:
        tell("writing the report")
        words = _render(diagnosis, ending, redact=not no_redact)
    if output is None:
        put(words)
        return
    from mgpu_doctor.recording.write import write_whole

    try:
        write_whole(output, words.encode())
    except OSError as error:
        leave(f"{output} cannot be written ({error.strerror}).", WRONG_USAGE)
    print_message(f"the report is in {output}")


def _render(diagnosis: Diagnosis, ending: str, *, redact: bool) -> str:
    from mgpu_doctor.report import diagnosis_json, html, markdown

    if ending == ".html":
        return html.render(diagnosis)
    if ending == ".json":
        return diagnosis_json.render(diagnosis)
    return markdown.render(diagnosis, redact=redact, home=os.path.expanduser("~"))
