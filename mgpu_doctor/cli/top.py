"""`mgpu-doctor top`: the live screen."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mgpu_doctor.cli.diagnose import recording
from mgpu_doctor.cli.options import FILE, Argument, Between, Dashed, after_dashes
from mgpu_doctor.cli.terminal_output import NOTHING_EXAMINED, colour, leave, put, width
from mgpu_doctor.launch.messages import print_message

if TYPE_CHECKING:
    from mgpu_doctor.live.frame_source import FrameOptions
    from mgpu_doctor.live.live_jobs import LiveJobs
    from mgpu_doctor.live.machine_recorder import Recorder
    from mgpu_doctor.live.replay import Replay
    from mgpu_doctor.tui.filter.language import Filter
    from mgpu_doctor.tui.jobs.starting import Started

WRONG_USAGE = 2


@click.command(cls=Dashed)
@click.argument(
    "job",
    cls=Argument,
    required=False,
    metavar="[JOB]",
    told="A recording's folder, its id, or `latest`; none: what runs here.",
)
@click.option("--replay", metavar="RECORDING", help="Replay a recording.")
@click.option("--once", is_flag=True, help="Print one frame and exit.")
@click.option("--json", is_flag=True, help="Print one frame as JSON and exit.")
@click.option(
    "--only",
    multiple=True,
    metavar="FILTER",
    help="Show only ranks and GPUs that match, e.g. gpus=0-3, ranks=0,2, 'util<5 mem>80%'.",
)
@click.option(
    "--interval",
    type=Between(0.1, 3600),
    default=1.0,
    metavar="SECONDS",
    help="Seconds between frames.",
)
@click.option(
    "--record",
    type=FILE,
    metavar="DIR",
    help="Record GPUs and host in DIR, for --replay.",
)
@click.option("--readonly", is_flag=True, help="Start and stop no jobs from the screen.")
@click.pass_context
def top(
    context: click.Context,
    job: str | None,
    *,
    replay: str | None,
    once: bool,
    json: bool,
    only: tuple[str, ...],
    interval: float,
    record: Path | None,
    readonly: bool,
) -> None:
    """Watch the GPUs, ranks and findings of the training job on this machine.

    \b
    Examples:
      mgpu-doctor top
      mgpu-doctor top --once
      mgpu-doctor top --replay latest
      mgpu-doctor top -- torchrun --nproc-per-node 4 train.py
      mgpu-doctor top --only 'rank:0-3 & wait>50%'
    """
    still = once or json
    if job is not None and replay is not None:
        leave("name a job or use --replay, not both.", WRONG_USAGE)
    if record is not None and (replay is not None or still):
        leave("--record works only with the live screen.", WRONG_USAGE)
    command = after_dashes(context)
    if command is not None and (not command or job or replay or still or readonly):
        leave(
            "`top -- COMMAND` takes a command, and no job, --replay, --once, --json or --readonly.",
            WRONG_USAGE,
        )
    if not still:
        _need_a_terminal()
    chosen = _filter(only)
    if still:
        _print(_source(job, replay, wanted=_of_one_look(drawn=not json)), chosen, as_json=json)
        return
    _watch(job, replay, chosen, interval, command=command, record=record, readonly=readonly)


def _watch(
    job: str | None,
    replay: str | None,
    only: Filter | None,
    interval: float,
    *,
    command: Sequence[str] | None,
    record: Path | None,
    readonly: bool,
) -> None:
    """Until the person leaves."""
    from mgpu_doctor.cli.settings_files import settings
    from mgpu_doctor.tui.app import TopApp
    from mgpu_doctor.tui.view import View

    recorder = _recorder(record)
    started = _start(command) if command else None
    source = _source(str(started.recording) if started else job, replay, recorder)
    live = TopApp(source, interval, settings=settings(), readonly=readonly, recorder=recorder)
    live.set_reactive(TopApp.view, View(filter=only))
    live.run()
    if started is not None:
        from mgpu_doctor.tui.jobs.starting import farewell

        print_message(farewell(started))
    if live.return_code:
        raise click.exceptions.Exit(live.return_code)


def _start(command: Sequence[str]) -> Started:
    from mgpu_doctor.tui.jobs.starting import NotStartedError, run_words, start

    try:
        return start(run_words(command))
    except NotStartedError as reason:
        leave(str(reason), NOTHING_EXAMINED)


def _recorder(folder: Path | None) -> Recorder | None:
    if folder is None:
        return None
    from mgpu_doctor.live.machine_recorder import Recorder
    from mgpu_doctor.recording.write import OccupiedError

    try:
        return Recorder(folder)
    except OccupiedError as error:
        leave(f"{error} Choose another folder.", WRONG_USAGE)
    except OSError as error:
        leave(f"{folder} cannot be written: {error.strerror}.", NOTHING_EXAMINED)


def _need_a_terminal() -> None:
    # Textual draws on standard error, so that standard output could be a pipe; it is not here.
    if not all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr)):
        leave("no terminal to draw on; print one frame with --once or --json.", WRONG_USAGE)
    if os.environ.get("TERM", "dumb") in ("dumb", ""):
        leave(
            "this terminal cannot draw (TERM=dumb); print one frame with --once or --json.",
            WRONG_USAGE,
        )


def _filter(only: Sequence[str]) -> Filter | None:
    if not only:
        return None
    from mgpu_doctor.tui.filter.language import FilterError, all_of, parse, pointed

    parsed = []
    for typed in only:
        try:
            parsed.append(parse(typed))
        except FilterError as error:
            leave("--only cannot be understood.", WRONG_USAGE, pointed(typed, error))
    return all_of(parsed)


def _of_one_look(*, drawn: bool) -> FrameOptions:
    from mgpu_doctor.live.frame_source import FrameOptions

    return FrameOptions(heat=drawn, history=False, details=not drawn, more=False)


def _source(
    job: str | None,
    replay: str | None,
    recorder: Recorder | None = None,
    wanted: FrameOptions | None = None,
) -> LiveJobs | Replay:
    from mgpu_doctor.cli.settings_files import settings

    chosen = settings()
    if replay is None:
        from mgpu_doctor.live.frame_source import ALL_OPTIONS
        from mgpu_doctor.live.live_jobs import LiveJobs

        given = None if job is None else recording(job)
        return LiveJobs(given, settings=chosen, recorder=recorder, wanted=wanted or ALL_OPTIONS)
    from mgpu_doctor.case.recording_case import NotARecording
    from mgpu_doctor.live.replay import Replay

    folder: Path = recording(replay)
    try:
        return Replay(folder, chosen)
    except NotARecording as error:
        leave(str(error), NOTHING_EXAMINED)


def _print(source: LiveJobs | Replay, only: Filter | None, *, as_json: bool) -> None:
    from mgpu_doctor.live.live_jobs import LiveJobs
    from mgpu_doctor.tui import once
    from mgpu_doctor.tui.view import View

    if not isinstance(source, LiveJobs):
        source.seek(1)
    frame, view = source.frame(0), View(filter=only)
    if as_json:
        put(once.render_json(frame, view))
    else:
        drawn = once.render(frame, width=width(sys.stdout), colour=colour(sys.stdout), view=view)
        put(drawn)
