"""`mgpu-doctor top`: the live screen."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mgpu_doctor.cli import app
from mgpu_doctor.cli.examined import recording
from mgpu_doctor.cli.output import NOTHING_EXAMINED, colour, leave, put, width

if TYPE_CHECKING:
    from mgpu_doctor.tui.source import Live, Replay

WRONG_USAGE = 2


@app.command()
def top(
    job: Annotated[
        str | None,
        typer.Argument(
            metavar="[JOB]", help="A recording's folder, its id, or `latest`; none: what runs here."
        ),
    ] = None,
    replay: Annotated[
        str | None,
        typer.Option("--replay", metavar="RECORDING", help="Play a recording again."),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Print one frame and exit.")] = False,
    json: Annotated[bool, typer.Option("--json", help="The same as JSON.")] = False,
    interval: Annotated[
        float, typer.Option("--interval", min=0.1, max=3600, help="Seconds between frames.")
    ] = 1.0,
) -> None:
    """Watch this machine's GPUs, its training job, the ranks and what is wrong with them.

    \b
    Examples:
      mgpu-doctor top
      mgpu-doctor top --once
      mgpu-doctor top --replay latest
    """
    if job is not None and replay is not None:
        leave("name a job or a recording to replay, not both.", WRONG_USAGE)
    if not (once or json):
        _need_a_terminal()
    source = _source(job, replay)
    if once or json:
        _print(source, as_json=json)
        return
    from mgpu_doctor.tui.app import TopApp

    live = TopApp(source, interval)
    live.run()
    if live.return_code:
        raise typer.Exit(live.return_code)


def _need_a_terminal() -> None:
    # Textual draws on standard error, so that standard output could be a pipe; it is not here.
    if not all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr)):
        leave("no terminal to draw on; print one frame with --once or --json.", WRONG_USAGE)
    if os.environ.get("TERM", "dumb") in ("dumb", ""):
        leave(
            "this terminal cannot draw (TERM=dumb); print one frame with --once or --json.",
            WRONG_USAGE,
        )


def _source(job: str | None, replay: str | None) -> Live | Replay:
    from mgpu_doctor.case.load import NotARecording
    from mgpu_doctor.cli.settings import settings
    from mgpu_doctor.tui.source import Live, Replay

    chosen = settings()
    if replay is None:
        return Live(None if job is None else recording(job), settings=chosen)
    folder: Path = recording(replay)
    try:
        return Replay(folder, chosen)
    except NotARecording as error:
        leave(str(error), NOTHING_EXAMINED)


def _print(source: Live | Replay, *, as_json: bool) -> None:
    from mgpu_doctor.tui import once
    from mgpu_doctor.tui.source import Replay

    if isinstance(source, Replay):
        source.seek(1)
    frame = source.frame(0)
    if as_json:
        put(once.render_json(frame))
    else:
        put(once.render(frame, width=width(sys.stdout), colour=colour(sys.stdout)))
