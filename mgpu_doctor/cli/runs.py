"""`mgpu-doctor runs`: lists the recordings on this machine."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, TypeVar

import click

from mgpu_doctor.cli.options import Argument, Verb
from mgpu_doctor.cli.terminal_output import NOTHING_EXAMINED, leave, put, put_line, width

if TYPE_CHECKING:
    from collections.abc import Callable

    from mgpu_doctor.recording.kept_recordings import Kept

WRONG_USAGE = 2
AGE = "such as 30d, 12h or 2w"
SIZE = "such as 20GiB or 500MiB"
T = TypeVar("T")


@click.group(invoke_without_command=True)
@click.option("--match", metavar="TEXT", help="Only recordings whose id or command contains TEXT.")
@click.option(
    "--failed", is_flag=True, help="Only jobs that ended with a signal or a non-zero exit code."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def runs(context: click.Context, *, match: str | None, failed: bool, as_json: bool) -> None:
    """List the recordings on this machine, newest first.

    Jobs started by `run` and `train` are recorded here unless `--dir` names another folder. When
    the recordings take more than 8 GiB, starting a job removes the oldest that ended more than a
    day ago. MGPU_DOCTOR_KEEP=20GiB in the environment sets another limit, `all` keeps all.

    \b
    Examples:
      mgpu-doctor runs
      mgpu-doctor runs --failed --match train.py
      mgpu-doctor runs show latest
      mgpu-doctor runs prune --older 30d
    """
    if context.invoked_subcommand is not None:
        return
    from mgpu_doctor.recording.home import home
    from mgpu_doctor.recording.kept_recordings import all_kept
    from mgpu_doctor.report import recording_list as views

    found = [kept for kept in all_kept() if _wanted(kept, match, failed=failed)]
    if as_json:
        put(views.as_json(found))
    elif found:
        put(views.table(found, width(sys.stdout)))
    else:
        put_line(f"No such recording is kept in {home()}." if match or failed else _none())


@runs.command(cls=Verb)
@click.argument(
    "reference", cls=Argument, metavar="RECORDING", told="Its folder, its id, or `latest`."
)
def show(reference: str) -> None:
    """Show what is known about a recording, without a diagnosis."""
    from mgpu_doctor.cli.diagnose import recording
    from mgpu_doctor.recording.kept_recordings import one_kept
    from mgpu_doctor.report import recording_list as views

    found = one_kept(recording(reference))
    if found is None:
        leave(f"{reference} is no recording; `mgpu-doctor runs` lists them.", NOTHING_EXAMINED)
    put(views.card(found, found.id if reference == "latest" else reference))


@runs.command(cls=Verb)
@click.option("--older", metavar="AGE", help=f"Remove recordings older than AGE, {AGE}.")
@click.option(
    "--most", metavar="SIZE", help=f"Remove the oldest until all together are at most SIZE, {SIZE}."
)
@click.option("--keep", type=click.IntRange(0), metavar="N", help="Remove all but the newest N.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
def prune(*, older: str | None, most: str | None, keep: int | None, yes: bool) -> None:
    """Remove old recordings, after confirmation. Those of running jobs are never removed.

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
        leave("choose what to remove: --older 30d, --most 5GiB or --keep 20.", WRONG_USAGE)
    going = retention.superfluous(
        all_kept(),
        time.time(),
        older=_read("--older", older, retention.seconds_of, AGE),
        most=_read("--most", most, retention.size_of, SIZE),
        keep=keep,
    )
    if not going:
        put("Nothing to remove.\n")
        return
    put(views.table(going, width(sys.stdout)))
    if not yes and not _agreed(len(going)):
        put("Nothing was removed.\n")
        return
    gone, left = retention.remove(going)
    freed = format_bytes(sum(one.size for one in gone))
    put(f"{format_count(len(gone), 'recording')} removed, {freed} free again.\n")
    if left:
        first, why = left[0]
        leave(f"{len(left)} could not be removed, such as {first.id} ({why}).", NOTHING_EXAMINED)


def _wanted(kept: Kept, match: str | None, *, failed: bool) -> bool:
    told = f"{kept.id} {' '.join(kept.command)}"
    return (match is None or match in told) and (kept.failed or not failed)


def _none() -> str:
    from mgpu_doctor.cli.diagnose import START_ONE
    from mgpu_doctor.recording.home import home

    return f"No recording is kept in {home()} yet: {START_ONE}."


def _read(name: str, told: str | None, read: Callable[[str], T | None], such: str) -> T | None:
    if told is None:
        return None
    found = read(told)
    if found is None:
        leave(f"{name} takes a number and a unit, {such}, not {told!r}.", WRONG_USAGE)
    return found


def _agreed(many: int) -> bool:
    from mgpu_doctor.formatting import format_count

    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        leave("there is no terminal to ask on: add --yes to remove them.", WRONG_USAGE)
    return click.confirm(f"Remove {format_count(many, 'recording')} for good?", err=True)
