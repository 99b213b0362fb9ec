"""`mgpu-doctor report`: the file that people attach to the ticket."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mgpu_doctor.cli import app
from mgpu_doctor.cli.examined import examine, recording
from mgpu_doctor.cli.output import leave, put

if TYPE_CHECKING:
    from mgpu_doctor.findings import Diagnosis

ENDINGS = (".html", ".md", ".json")
WRONG_USAGE = 2


@app.command()
def report(
    reference: Annotated[
        str, typer.Argument(metavar="RECORDING", help="A recording's folder, its id, or `latest`.")
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help=".html, .md or .json; none: Markdown, printed."
        ),
    ] = None,
    no_redact: Annotated[
        bool,
        typer.Option("--no-redact", help="Keep host names and paths in Markdown (HTML has them)."),
    ] = False,
) -> None:
    """Write the post-mortem of a job: one file that tells the whole story.

    \b
    Examples:
      mgpu-doctor report latest -o report.html
      mgpu-doctor report runs/today -o report.md
      mgpu-doctor report latest | gh issue create --title "slow rank" --body-file -
    """
    ending = ".md" if output is None else output.suffix.lower()
    if ending not in ENDINGS:
        leave(f"{output} must end in .html, .md or .json.", WRONG_USAGE)
    words = _render(examine(recording(reference)), ending, redact=not no_redact)
    if output is None:
        put(words)
        return
    from mgpu_doctor.recording.write import write_whole

    try:
        write_whole(output, words.encode())
    except OSError as error:
        leave(f"{output} cannot be written ({error.strerror}).", WRONG_USAGE)
    typer.echo(f"mgpu-doctor: the report is in {output}", err=True)


def _render(diagnosis: Diagnosis, ending: str, *, redact: bool) -> str:
    from mgpu_doctor.report import html, json, markdown

    if ending == ".html":
        return html.render(diagnosis)
    if ending == ".json":
        return json.render(diagnosis)
    return markdown.render(diagnosis, redact=redact)
