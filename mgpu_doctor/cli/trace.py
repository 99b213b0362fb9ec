"""`mgpu-doctor trace`: profiler traces or times of collectives of some steps of a running job."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mgpu_doctor.cli.completers import complete_recording
from mgpu_doctor.cli.host_options import HostsRequest, host_options, propose_option
from mgpu_doctor.cli.options import FILE, Argument, Between, Verb
from mgpu_doctor.cli.terminal_output import (
    NOTHING_EXAMINED,
    WRONG_USAGE,
    display_of,
    exit_with,
    print_text,
    progress_line,
)
from mgpu_doctor.launch.messages import print_message

if TYPE_CHECKING:
    from mgpu_probes.outside.traces.trace_requests import TakenTrace, TraceRequest

    from mgpu_doctor.case.model import Case
    from mgpu_doctor.examine.trace_targets import TraceRoute

MAX_STEPS, MAX_SECONDS = 1_000, 60.0
TIMING_STAYS_ON = (
    "NCCL times every collective from now on until the job ends: PyTorch cannot switch this off "
    "again. It costs one more CUDA event per collective."
)
NO_TIMES = (
    "no collective was timed. Either none was called, or this PyTorch times collectives only if "
    "the job is started with TORCH_NCCL_ENABLE_TIMING=1."
)
NOT_ALL_RANKS = (
    "no collective was timed on all of its ranks. If some of them run on other hosts, name all "
    "hosts with --hosts, --slurm, --k8s or --ray. The flight recorders are in {}."
)


@click.command(cls=Verb)
@click.argument(
    "subject",
    cls=Argument,
    required=False,
    metavar="[PID|RECORDING]",
    shell_complete=complete_recording,
    help_text="A process id of the job (launcher or any rank), or the recording of a running job "
    "(its folder, its id, `latest`). Not needed with --hosts, --slurm, --k8s and --ray.",
)
@click.option(
    "--steps",
    type=click.IntRange(1, MAX_STEPS),
    help="Number of steps to trace. By default 20, or as many as fit in 30 s.",
)
@click.option(
    "--seconds",
    type=Between(0.1, MAX_SECONDS),
    help="Trace for this many seconds, and to the end of the last step.",
)
@click.option(
    "--output",
    "-o",
    type=FILE,
    metavar="DIR",
    help="A new or empty folder for the traces, one file per rank. By default ./trace-DATE-TIME, "
    "or `traces` in the recording of a job on other hosts.",
)
@click.option(
    "--collectives",
    is_flag=True,
    help="Do not trace: time each NCCL collective, from the arrival of each rank to the end. "
    "This stays on until the job ends.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the diagnosis as JSON.")
@host_options
def trace(
    subject: str | None,
    steps: int | None,
    seconds: float | None,
    output: Path | None,
    *,
    collectives: bool,
    as_json: bool,
    hosts: HostsRequest | None,
) -> None:
    """Trace some steps of a running job with PyTorch's profiler, and summarize them.

    All ranks trace the same steps. The job is slower while it is traced, and pauses while the
    traces are written. It must have been started with `mgpu-doctor run`, or with
    KINETO_USE_DAEMON=1 in its environment. Exit code: 0 at least one rank was traced, 2 wrong
    usage, 3 no rank was traced.

    \b
    Examples:
      mgpu-doctor trace 12345
      mgpu-doctor trace latest --steps 40 -o traces
      mgpu-doctor trace 12345 --seconds 5
      mgpu-doctor trace 12345 --collectives
      mgpu-doctor trace --hosts node1,node2
      mgpu-doctor trace --slurm 4711 --steps 40
    """
    from mgpu_probes.outside.traces.trace_requests import TraceRequest

    from mgpu_doctor.examine.subjects import UnknownSubject
    from mgpu_doctor.examine.trace_targets import find_trace_route

    wanted = TraceRequest(steps, seconds)
    take = _time_collectives if collectives else _trace_steps
    if (hosts is None) == (subject is None):
        option = "--hosts" if hosts is None else hosts.option
        exit_with(
            WRONG_USAGE,
            f"name a process id, a recording or {option}.",
            propose_option(os.environ) or "",
        )
    try:
        if subject is not None:
            take(find_trace_route(subject), wanted, output, as_json=as_json)
            return
        with _open_host_route(hosts) as route:
            take(route, wanted, output, as_json=as_json)
    except UnknownSubject as error:
        exit_with(NOTHING_EXAMINED, str(error))


@contextmanager
def _open_host_route(hosts: HostsRequest | None) -> Iterator[TraceRoute]:
    """Yields the way to the ranks of the only job on these hosts. Raises UnknownSubject."""
    from mgpu_doctor.cluster.host_fleet import Fleet
    from mgpu_doctor.examine.trace_targets import find_host_route

    assert hosts is not None
    names, engine = hosts.find()
    with Fleet(names, engine) as fleet:
        with progress_line() as report_progress:
            route = find_host_route(fleet, report_progress)
        for gap in route.unseen:
            print_message(f"{gap.probe}: {gap.reason}.")
        yield route


def _trace_steps(
    route: TraceRoute, wanted: TraceRequest, output: Path | None, *, as_json: bool
) -> None:
    from mgpu_probes.outside.traces.trace_columns import NotATraceError

    from mgpu_doctor.case.profiler_case import case_of_traces
    from mgpu_doctor.examine.trace_targets import take_traces

    with _new_folder(output, route.recording) as folder, progress_line() as report_progress:
        traces = take_traces(route, wanted, folder, report_progress)
    _require_any(traces)
    try:
        case = case_of_traces([folder])
    except (NotATraceError, OSError) as error:
        exit_with(NOTHING_EXAMINED, f"{error}.")
    unexamined = (*case.unexamined, *route.unseen)
    _print_diagnosis(replace(case, unexamined=unexamined), as_json=as_json)
    print_message(
        f"the traces are in {folder}. `mgpu-doctor diagnose {folder}` examines them again; "
        "https://ui.perfetto.dev displays them."
    )


def _time_collectives(
    route: TraceRoute, wanted: TraceRequest, output: Path | None, *, as_json: bool
) -> None:
    from mgpu_probes.outside.torch_pickles import NotAFlightError

    from mgpu_doctor.analysis.collectives.collective_durations import time_collectives
    from mgpu_doctor.case.flight_records import read_flights
    from mgpu_doctor.case.profiler_case import case_of_flights
    from mgpu_doctor.examine.trace_targets import check_collective_timing, take_collective_times
    from mgpu_doctor.report.collective_table import render_collectives

    ranks = check_collective_timing(route)
    with _new_folder(output, route.recording) as folder:
        print_message(TIMING_STAYS_ON)
        with progress_line() as report_progress:
            traces = take_collective_times(ranks, wanted, folder, report_progress)
    _require_any(traces)
    try:
        flights = read_flights(folder)
    except NotAFlightError as error:
        exit_with(NOTHING_EXAMINED, f"{error}.")
    times = time_collectives(flights)
    if times is None or not times.groups:
        is_timed = times is not None
        exit_with(NOTHING_EXAMINED, NOT_ALL_RANKS.format(folder) if is_timed else NO_TIMES)
    if as_json:
        _print_diagnosis(case_of_flights(flights, str(folder)), as_json=True)
    else:
        print_text(render_collectives(times))
    print_message(
        f"the flight recorders are in {folder}. `mgpu-doctor diagnose {folder}` examines them "
        "again, together with a recording if you name it, too."
    )


def _require_any(traces: Sequence[TakenTrace]) -> None:
    """Prints what is missing; exits with code 3 if all is."""
    _report_failures(traces)
    if not any(trace.path is not None for trace in traces):
        raise click.exceptions.Exit(NOTHING_EXAMINED)


@contextmanager
def _new_folder(output: Path | None, recording: Path | None) -> Iterator[Path]:
    """Yields a new or empty folder that only this user can read, and removes it if it stays empty;
    exits with code 2 if there is none. `recording`: where the job is gathered."""
    from mgpu_doctor.recording.layout import TRACES
    from mgpu_doctor.recording.write import private_folder

    usual = Path(time.strftime("trace-%Y%m%d-%H%M%S")) if recording is None else recording / TRACES
    folder = output or usual
    try:
        private_folder(folder)
        if any(folder.iterdir()):
            exit_with(WRONG_USAGE, f"{folder} is not empty: name a new folder.")
    except OSError as error:
        exit_with(WRONG_USAGE, f"{folder} cannot be written ({error.strerror}).")
    try:
        yield folder
    finally:
        with suppress(OSError):  # it is not empty
            folder.rmdir()


def _report_failures(traces: Sequence[TakenTrace]) -> None:
    """Print each reason for a missing or short trace once, with its ranks."""
    from mgpu_doctor.report.text import line

    reasons: dict[str, list[str]] = {}
    for taken_trace in traces:
        if taken_trace.why is not None:
            rank_label = (
                f"rank {taken_trace.rank}"
                if taken_trace.rank is not None
                else f"process {taken_trace.pid}"
            )
            if taken_trace.host is not None:
                rank_label += f" on {taken_trace.host}"
            shortfall = "no trace" if taken_trace.path is None else "a short trace"
            reasons.setdefault(f"{shortfall} ({line(taken_trace.why)})", []).append(rank_label)
    for reason, ranks in reasons.items():
        further = f" and {len(ranks) - 4} more" if len(ranks) > 4 else ""
        print_message(f"{', '.join(ranks[:4])}{further}: {reason}.")


def _print_diagnosis(case: Case, *, as_json: bool) -> None:
    from mgpu_doctor.diagnosis import diagnose
    from mgpu_doctor.report import diagnosis_json, terminal
    from mgpu_doctor.settings_files import settings

    diagnosis = diagnose(case, settings())
    if as_json:
        print_text(diagnosis_json.render(diagnosis))
    else:
        print_text(terminal.render(diagnosis, **display_of(sys.stdout)))
