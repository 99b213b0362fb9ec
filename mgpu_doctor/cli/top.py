"""`mgpu-doctor top`: the live screen of GPUs, ranks and findings, or a replay."""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mgpu_doctor.cli.completers import complete_recording
from mgpu_doctor.cli.host_options import HostsRequest, host_options, propose_option
from mgpu_doctor.cli.options import FILE, Argument, Between, Dashed, words_after_dashes
from mgpu_doctor.cli.terminal_output import (
    NOTHING_EXAMINED,
    WRONG_USAGE,
    exit_with,
    has_colour,
    print_text,
    terminal_width,
)
from mgpu_doctor.launch.messages import print_message

if TYPE_CHECKING:
    from mgpu_doctor.live.frame import Frame
    from mgpu_doctor.live.frame_source import FrameOptions, Source
    from mgpu_doctor.live.host_jobs import HostJobs
    from mgpu_doctor.live.live_jobs import LiveJobs
    from mgpu_doctor.live.machine_recorder import Recorder
    from mgpu_doctor.live.replay import Replay
    from mgpu_doctor.rules.settings import Settings
    from mgpu_doctor.tui.filter.language import Filter
    from mgpu_doctor.tui.jobs.starting import Started


POLL_EVERY = 1.0
"""Seconds between the polls of agents on other hosts, at most."""
RATES_OVER = 1.2
"""Seconds between the two samples that the rates of `--once` and `--json` are made of."""
HOST_RATES_OVER = 0.3
"""The same where only the host has rates. A choice: 30 ticks of the clock of each core."""


@click.command(cls=Dashed)
@click.argument(
    "job",
    cls=Argument,
    required=False,
    metavar="[JOB]",
    shell_complete=complete_recording,
    help_text="A recording: its folder, its id, or `latest`. By default, every job that is running "
    "here.",
)
@click.option(
    "--replay",
    metavar="RECORDING",
    shell_complete=complete_recording,
    help="Replay a recording instead of showing what is running.",
)
@click.option("--once", is_flag=True, help="Print one frame and exit.")
@click.option("--json", is_flag=True, help="Print one frame as JSON and exit.")
@click.option(
    "--only",
    multiple=True,
    metavar="FILTER",
    help="Show only ranks and GPUs that match FILTER, such as gpus=0-3, ranks=0,2 or "
    "'util<5 mem>80%'. Several --only must all match.",
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
    help="Also record the GPUs and the host in DIR, for --replay.",
)
@click.option(
    "--readonly", is_flag=True, help="Disable starting and stopping jobs from the screen."
)
@click.pass_context
@host_options
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
    hosts: HostsRequest | None,
) -> None:
    """Watch the GPUs, ranks and findings of the training jobs on this machine, or on other hosts.

    \b
    Examples:
      mgpu-doctor top
      mgpu-doctor top --once
      mgpu-doctor top --replay latest
      mgpu-doctor top -- torchrun --nproc-per-node 4 train.py
      mgpu-doctor top --only 'rank:0-3 & wait>50%'
      mgpu-doctor top --hosts node1,node2
      mgpu-doctor top --slurm 4711
    """
    still = once or json
    if job is not None and replay is not None:
        exit_with(WRONG_USAGE, "name either a job or --replay RECORDING, not both.")
    if record is not None and (replay is not None or still):
        exit_with(
            WRONG_USAGE,
            "--record works only with the live screen, not with --replay, --once or --json.",
        )
    command = words_after_dashes(context)
    if command is not None and (not command or job or replay or still or readonly):
        exit_with(
            WRONG_USAGE,
            "`top -- COMMAND` needs a command, and cannot be combined with a job, --replay, "
            "--once, --json or --readonly.",
        )
    if hosts is not None and (job or replay or record or command):
        exit_with(
            WRONG_USAGE,
            f"{hosts.option} cannot be combined with a job, --replay, --record or a command.",
        )
    if not still:
        _require_terminal()
    from mgpu_doctor import settings_files

    settings = settings_files.settings()
    chosen = _parse_filters(only)
    is_whole = hosts is not None or job is not None or replay is not None or command is not None
    proposal = None if is_whole else propose_option(os.environ)
    if still:
        if proposal is not None:
            print_message(f"{proposal}.")
        wanted = _options_for_still()
        source = (
            _make_answered_source(hosts, settings, wanted)
            if hosts is not None
            else _make_source(job, replay, settings, wanted=wanted)
        )
        _print_still(source, chosen, as_json=json)
        return
    if hosts is not None:
        raise click.exceptions.Exit(
            _draw(
                _make_host_source(hosts, settings, every=interval),
                chosen,
                interval,
                settings=settings,
                readonly=True,
            )
        )
    _show_live(
        job,
        replay,
        chosen,
        interval,
        settings=settings,
        command=command,
        record=record,
        readonly=readonly,
        notice=proposal,
    )


def _show_live(
    job: str | None,
    replay: str | None,
    only: Filter | None,
    interval: float,
    *,
    settings: Settings,
    command: Sequence[str] | None,
    record: Path | None,
    readonly: bool,
    notice: str | None,
) -> None:
    """Show the live screen until the user quits; then say what became of a started job."""
    gc.disable()  # until all is loaded: collecting takes a tenth of the time to the first frame
    recorder = _make_recorder(record)
    started = _start(command) if command else None
    watched = str(started.recording) if started else job
    code = _draw(
        _make_source(watched, replay, settings, recorder),
        only,
        interval,
        settings=settings,
        readonly=readonly,
        recorder=recorder,
        notice=notice,
    )
    if started is not None:
        from mgpu_doctor.tui.jobs.starting import farewell

        print_message(farewell(started))
    if code:
        raise click.exceptions.Exit(code)


def _draw(
    source: Source,
    only: Filter | None,
    interval: float,
    *,
    settings: Settings,
    readonly: bool,
    recorder: Recorder | None = None,
    notice: str | None = None,
) -> int:
    """Show a source until the user quits; the exit code. `notice`: shown at first."""
    from mgpu_doctor.tui.app import TopApp
    from mgpu_doctor.tui.view import View

    live = TopApp(
        source, interval, settings=settings, readonly=readonly, recorder=recorder, notice=notice
    )
    live.set_reactive(TopApp.view, View(filter=only))
    gc.freeze()  # what is loaded stays: no later collection has to search it
    gc.enable()
    live.run()
    return live.return_code or 0


def _start(command: Sequence[str]) -> Started:
    from mgpu_doctor.tui.jobs.starting import NotStartedError, run_words, start

    try:
        return start(run_words(command))
    except NotStartedError as reason:
        exit_with(NOTHING_EXAMINED, str(reason))


def _make_recorder(folder: Path | None) -> Recorder | None:
    if folder is None:
        return None
    from mgpu_doctor.live.machine_recorder import Recorder
    from mgpu_doctor.recording.write import OccupiedError

    try:
        return Recorder(folder)
    except OccupiedError as error:
        exit_with(WRONG_USAGE, f"{error} Choose another folder.")
    except OSError as error:
        exit_with(NOTHING_EXAMINED, f"{folder} cannot be written: {error.strerror}.")


def _require_terminal() -> None:
    # Textual draws on standard error and would accept a pipe as standard output; we do not.
    streams = (sys.stdin, sys.stdout, sys.stderr)  # None: it is closed
    if not all(stream is not None and stream.isatty() for stream in streams):
        exit_with(WRONG_USAGE, "no terminal to draw on: use --once or --json to print one frame.")
    if os.environ.get("TERM", "dumb") in ("dumb", ""):
        exit_with(
            WRONG_USAGE,
            "this terminal cannot draw (TERM=dumb): use --once or --json to print one frame.",
        )


def _parse_filters(only: Sequence[str]) -> Filter | None:
    if not only:
        return None
    from mgpu_doctor.tui.filter.language import FilterError, all_of, parse, pointed

    parsed = []
    for text in only:
        try:
            parsed.append(parse(text))
        except FilterError as error:
            exit_with(WRONG_USAGE, "--only is not a valid filter:", pointed(text, error))
    return all_of(parsed)


def _options_for_still() -> FrameOptions:
    from mgpu_doctor.live.frame_source import FrameOptions

    return FrameOptions(history=False, more=False)


def _make_source(
    job: str | None,
    replay: str | None,
    settings: Settings,
    recorder: Recorder | None = None,
    wanted: FrameOptions | None = None,
) -> LiveJobs | Replay:
    if replay is None:
        from mgpu_doctor.live.frame_source import ALL_OPTIONS
        from mgpu_doctor.live.live_jobs import LiveJobs

        recording = None if job is None else _find_recording(job)
        jobs = LiveJobs(
            recording, settings=settings, recorder=recorder, wanted=wanted or ALL_OPTIONS
        )
        if wanted is None:
            jobs.begin()
        return jobs
    from mgpu_doctor.case.recording_case import NotARecording
    from mgpu_doctor.live.replay import Replay

    folder = _find_recording(replay)
    try:
        return Replay(folder, settings)
    except NotARecording as error:
        exit_with(NOTHING_EXAMINED, str(error))


def _find_recording(name: str) -> Path:
    from mgpu_doctor.cli.diagnose import find_recording  # most screens name none

    return find_recording(name)


def _make_host_source(
    hosts: HostsRequest,
    settings: Settings,
    wanted: FrameOptions | None = None,
    every: float = POLL_EVERY,
) -> HostJobs:
    """The jobs on these hosts. `wanted`: for one frame, which waits until the hosts have
    answered. `every`: seconds between frames; agents poll no less often than `POLL_EVERY`."""
    from mgpu_doctor.cluster.host_fleet import Fleet
    from mgpu_doctor.live.frame_source import ALL_OPTIONS
    from mgpu_doctor.live.host_jobs import HostJobs

    fleet = Fleet(*hosts.find(), min(every, POLL_EVERY))
    return HostJobs(fleet, settings, wanted or ALL_OPTIONS, patient=wanted is not None)


def _make_answered_source(
    hosts: HostsRequest, settings: Settings, wanted: FrameOptions
) -> HostJobs:
    """The jobs on these hosts, for one frame; exits with code 3 if no host answers."""
    source = _make_host_source(hosts, settings, wanted)
    if reason := source.explain_silence():
        source.close()
        exit_with(NOTHING_EXAMINED, reason)
    return source


def _print_still(source: Source, only: Filter | None, *, as_json: bool) -> None:
    from mgpu_doctor.live.frame_source import Player
    from mgpu_doctor.tui import once
    from mgpu_doctor.tui.view import View

    if isinstance(source, Player):
        source.seek(1)
    try:
        frame, view = source.frame(0), View(filter=only)
        seconds = _choose_wait(source, frame)
        if seconds:
            time.sleep(seconds)
            frame = source.frame(seconds)
    finally:
        source.close()
    if as_json:
        print_text(once.render_json(frame, view))
    else:
        drawn = once.render(
            frame, width=terminal_width(sys.stdout), colour=has_colour(sys.stdout), view=view
        )
        print_text(drawn)


def _choose_wait(source: Source, frame: Frame) -> float:
    """Seconds until the second frame, with which rates are known; 0: one frame has all."""
    from mgpu_doctor.live.frame_source import Chooser, StackTaker

    if not isinstance(source, Chooser):
        return 0.0
    if frame.devices is not None and frame.devices.devices:
        return RATES_OVER
    return 0.0 if isinstance(source, StackTaker) else HOST_RATES_OVER  # agents send rates
