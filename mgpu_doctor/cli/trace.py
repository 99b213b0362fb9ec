"""`mgpu-doctor trace`: a profiler trace of a running job, on demand."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mgpu_doctor.cli.options import FILE, Argument, Between, Verb
from mgpu_doctor.cli.terminal_output import NOTHING_EXAMINED, colour, leave, put, unicode, width
from mgpu_doctor.launch.messages import print_message

if TYPE_CHECKING:
    from mgpu_probes.outside.traces.trace_requests import TakenTrace

WRONG_USAGE = 2
MOST_STEPS, MOST_SECONDS = 1_000, 60.0


@click.command(cls=Verb)
@click.argument(
    "subject",
    cls=Argument,
    metavar="PID|RECORDING",
    told="A process of the job (launcher or any rank), or the recording of a job that runs "
    "(its folder, its id, `latest`).",
)
@click.option(
    "--steps",
    type=click.IntRange(1, MOST_STEPS),
    help="Steps to trace; by default 20, or as many as fit in 30 s.",
)
@click.option(
    "--seconds",
    type=Between(0.1, MOST_SECONDS),
    help="Trace for this long, to the end of the step.",
)
@click.option(
    "--output",
    "-o",
    type=FILE,
    metavar="DIR",
    help="A new or empty folder for the traces, one file per rank; by default ./trace-DATE-TIME.",
)
def trace(subject: str, steps: int | None, seconds: float | None, output: Path | None) -> None:
    """Trace some steps of a running job with PyTorch's profiler, and summarize them.

    All ranks trace the same steps. The job runs more slowly while it is traced, and pauses while
    the traces are written. It must have been started with `mgpu-doctor run`, or with
    KINETO_USE_DAEMON=1 in its environment. Exit code: 0 traced, 2 wrong usage, 3 no trace.

    \b
    Examples:
      mgpu-doctor trace 12345
      mgpu-doctor trace latest --steps 40 -o traces
      mgpu-doctor trace 12345 --seconds 5
    """
    from mgpu_probes.outside.traces.trace_requests import TraceRequest

    from mgpu_doctor.cli.terminal_output import telling
    from mgpu_doctor.examine.subjects import UnknownSubject
    from mgpu_doctor.examine.trace_targets import take, way_to

    try:
        way = way_to(subject)
        folder = _folder(output)
        with telling() as tell:
            taken = take(way, TraceRequest(steps, seconds), folder, tell)
    except UnknownSubject as error:
        leave(str(error), NOTHING_EXAMINED)
    _say(taken)
    if not any(one.path is not None for one in taken):
        _forget(folder)
        raise click.exceptions.Exit(NOTHING_EXAMINED)
    _examine(folder)
    print_message(
        f"the traces are in {folder}: `mgpu-doctor diagnose {folder}` examines them again, "
        "https://ui.perfetto.dev shows them."
    )


def _folder(output: Path | None) -> Path:
    """Made, private and empty."""
    from mgpu_doctor.recording.write import private_folder

    folder = output or Path(time.strftime("trace-%Y%m%d-%H%M%S"))
    try:
        private_folder(folder)
        if any(folder.iterdir()):
            leave(f"{folder} is not empty: name a new folder.", WRONG_USAGE)
    except OSError as error:
        leave(f"{folder} cannot be written ({error.strerror}).", WRONG_USAGE)
    return folder


def _forget(folder: Path) -> None:
    try:
        folder.rmdir()
    except OSError:
        return  # something is in it


def _say(taken: Sequence[TakenTrace]) -> None:
    """Each reason once, with the ranks that it holds for."""
    from mgpu_doctor.report.text import line

    reasons: dict[str, list[str]] = {}
    for taken_trace in taken:
        if taken_trace.why is not None:
            who = (
                f"rank {taken_trace.rank}"
                if taken_trace.rank is not None
                else f"process {taken_trace.pid}"
            )
            what = "no trace" if taken_trace.path is None else "a short trace"
            reasons.setdefault(f"{what} ({line(taken_trace.why)})", []).append(who)
    for reason, whose in reasons.items():
        more = f" and {len(whose) - 4} more" if len(whose) > 4 else ""
        print_message(f"{', '.join(whose[:4])}{more}: {reason}.")


def _examine(folder: Path) -> None:
    from mgpu_probes.outside.traces.trace_columns import NotATraceError

    from mgpu_doctor.case.profiler_case import case_of_traces
    from mgpu_doctor.cli.settings_files import settings
    from mgpu_doctor.diagnose import diagnose
    from mgpu_doctor.report import terminal

    chosen = settings()
    try:
        case = case_of_traces([folder])
    except (NotATraceError, OSError) as error:
        leave(f"{error}.", NOTHING_EXAMINED)
    out = sys.stdout
    put(
        terminal.render(
            diagnose(case, chosen), width=width(out), colour=colour(out), unicode=unicode(out)
        )
    )
