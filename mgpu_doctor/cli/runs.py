"""`mgpu-doctor runs`: lists, shows and removes the recordings on this machine."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, TypeVar

import click

from mgpu_doctor.cli.completers import complete_recording
from mgpu_doctor.cli.options import Argument, Suggesting, Verb
from mgpu_doctor.cli.terminal_output import (
    NOTHING_EXAMINED,
    WRONG_USAGE,
    exit_with,
    print_line,
    print_text,
    terminal_width,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from mgpu_doctor.recording.kept_recordings import Kept

AGE = "such as 30d, 12h or 2w"
SIZE = "such as 20GiB or 500MiB"
T = TypeVar("T")
Listed = TypeVar("Listed", bound="Callable[..., object]")


def _listing(command: Listed) -> Listed:
    """The options of a list of recordings."""
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print one JSON object."),
        click.option(
            "--failed",
            is_flag=True,
            help="List only jobs that ended with a signal or a non-zero exit code.",
        ),
        click.option(
            "--match",
            metavar="TEXT",
            help="List only recordings whose id or command contains TEXT.",
        ),
    ):
        command = option(command)
    return command


@click.group(cls=Suggesting, invoke_without_command=True)
@_listing
@click.pass_context
def runs(context: click.Context, *, match: str | None, failed: bool, as_json: bool) -> None:
    """List the recordings on this machine, newest first.

    Jobs started by `run` and `train` are recorded here unless `--dir` names another folder. If
    the recordings take more than 8 GiB, starting a job removes the oldest of those that ended more
    than a day ago. MGPU_DOCTOR_KEEP=20GiB in the environment sets another limit, and
    MGPU_DOCTOR_KEEP=all keeps everything.

    \b
    Examples:
      mgpu-doctor runs
      mgpu-doctor runs --failed --match train.py
      mgpu-doctor runs show latest
      mgpu-doctor runs prune --older 30d
    """
    if context.invoked_subcommand is None:
        _print_list(match, failed=failed, as_json=as_json)


@runs.command("list", cls=Verb)
@_listing
def list_recordings(*, match: str | None, failed: bool, as_json: bool) -> None:
    """List the recordings, as `runs` alone does."""
    _print_list(match, failed=failed, as_json=as_json)


def _print_list(match: str | None, *, failed: bool, as_json: bool) -> None:
    from mgpu_doctor.recording.home import home
    from mgpu_doctor.recording.kept_recordings import all_kept
    from mgpu_doctor.report import recording_list as views

    recordings = [
        recording for recording in all_kept() if _matches(recording, match, failed=failed)
    ]
    if as_json:
        print_text(views.as_json(recordings))
    elif recordings:
        print_text(views.table(recordings, terminal_width(sys.stdout)))
    else:
        print_line(f"No recording in {home()} matches." if match or failed else _explain_empty())


@runs.command(cls=Verb)
@click.argument(
    "reference",
    cls=Argument,
    metavar="RECORDING",
    shell_complete=complete_recording,
    help_text="A recording: its folder, its id, or `latest`.",
)
def show(reference: str) -> None:
    """Show what is known about a recording, without a diagnosis."""
    from mgpu_doctor.cli.diagnose import find_recording
    from mgpu_doctor.recording.kept_recordings import one_kept
    from mgpu_doctor.report import recording_list as views

    recording = one_kept(find_recording(reference))
    if recording is None:
        exit_with(
            NOTHING_EXAMINED,
            f"{reference} is not a recording; `mgpu-doctor runs` lists all recordings.",
        )
    print_text(views.card(recording, recording.id if reference == "latest" else reference))


@runs.command(cls=Verb)
@click.option("--older", metavar="AGE", help=f"Remove recordings older than AGE, {AGE}.")
@click.option(
    "--most", metavar="SIZE", help=f"Remove the oldest until the rest takes at most SIZE, {SIZE}."
)
@click.option("--keep", type=click.IntRange(0), metavar="N", help="Remove all but the newest N.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
def prune(*, older: str | None, most: str | None, keep: int | None, yes: bool) -> None:
    """Remove old recordings, after confirmation. Recordings of running jobs are kept.

    \b
    Examples:
      mgpu-doctor runs prune --older 30d
      mgpu-doctor runs prune --most 5GiB --yes
    """
    from mgpu_doctor.formatting import format_bytes, format_count
    from mgpu_doctor.recording import retention
    from mgpu_doctor.recording.kept_recordings import all_kept
    from mgpu_doctor.report import recording_list as views

    if older is None and most is None and keep is None:
        exit_with(WRONG_USAGE, "choose what to remove: --older 30d, --most 5GiB or --keep 20.")
    removable = retention.superfluous(
        all_kept(),
        time.time(),
        older=_parse("--older", older, retention.seconds_of, AGE),
        most=_parse("--most", most, retention.size_of, SIZE),
        keep=keep,
    )
    if not removable:
        print_text("Nothing to remove.\n")
        return
    print_text(views.table(removable, terminal_width(sys.stdout)))
    if not yes and not _confirm(len(removable)):
        print_text("Nothing was removed.\n")
        return
    removed, not_removed = retention.remove(removable)
    freed = format_bytes(sum(recording.size for recording in removed))
    print_text(f"{format_count(len(removed), 'recording')} removed, {freed} freed.\n")
    if not_removed:
        first, why = not_removed[0]
        exit_with(
            NOTHING_EXAMINED,
            f"{format_count(len(not_removed), 'recording')} could not be removed, such as "
            f"{first.id} ({why}).",
        )


def _matches(recording: Kept, match: str | None, *, failed: bool) -> bool:
    searched = f"{recording.id} {' '.join(recording.command)}"
    return (match is None or match in searched) and (recording.failed or not failed)


def _explain_empty() -> str:
    from mgpu_doctor.api.verb_requests import START_A_JOB
    from mgpu_doctor.recording.home import home

    return f"No recordings in {home()} yet: {START_A_JOB}."


def _parse(
    name: str, text: str | None, parse: Callable[[str], T | None], examples: str
) -> T | None:
    if text is None:
        return None
    value = parse(text)
    if value is None:
        exit_with(WRONG_USAGE, f"{name} takes a number and a unit, {examples}, not {text!r}.")
    return value


def _confirm(count: int) -> bool:
    from mgpu_doctor.formatting import format_count

    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        exit_with(
            WRONG_USAGE, "no terminal to ask for confirmation: use --yes to remove without asking."
        )
    return click.confirm(f"Remove {format_count(count, 'recording')} permanently?", err=True)
