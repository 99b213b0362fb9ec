"""`mgpu-doctor export`: a recording as files for other programs, or live metrics."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from mgpu_doctor.cli.completers import complete_recording
from mgpu_doctor.cli.diagnose import diagnose_recording, find_recording
from mgpu_doctor.cli.host_options import HostsRequest, host_options, suggest_option
from mgpu_doctor.cli.options import FILE, Argument, Between, Verb
from mgpu_doctor.cli.terminal_output import (
    NOTHING_EXAMINED,
    WRONG_USAGE,
    exit_with,
    print_line,
    progress_line,
)
from mgpu_doctor.launch.messages import print_message

if TYPE_CHECKING:
    from mgpu_doctor.export.access import Address
    from mgpu_doctor.export.http_server import Server
    from mgpu_doctor.findings import Diagnosis
    from mgpu_doctor.live.host_jobs import HostJobs
    from mgpu_doctor.live.live_jobs import LiveJobs


class ExportFiles(NamedTuple):
    """The files to write; None: not requested."""

    timeline: Path | None = None
    csv: Path | None = None
    parquet: Path | None = None
    tensorboard: Path | None = None


ENDINGS = (".json", ".csv", ".parquet", None)
EXTRAS = {"parquet": "pyarrow", "tensorboard": "tensorboardX"}
"""Name of a format and of its extra -> the package that writes it."""


def write_files(job: str, wanted: ExportFiles) -> None:
    """Write the requested files and print the size of each; exits if one cannot be written."""
    _check_request(wanted)

    with progress_line() as report_progress:
        report_progress("reading the recording")
        diagnosis = diagnose_recording(find_recording(job))
        if wanted != ExportFiles(timeline=wanted.timeline) and not _has_steps(diagnosis):
            exit_with(
                NOTHING_EXAMINED, f"{job} contains no steps; `mgpu-doctor diagnose {job}` says why."
            )
        for name, path in wanted._asdict().items():
            if path is None:
                continue
            report_progress(f"writing {path.name}")
            try:
                size = WRITERS[name](path, diagnosis)
            except OSError as error:
                exit_with(WRONG_USAGE, f"{path} cannot be written ({error.strerror or error}).")
            print_line(f"{path}: {size}")


def _has_steps(diagnosis: Diagnosis) -> bool:
    return any(len(rank.steps) for rank in (*diagnosis.case.earlier, *diagnosis.case.ranks))


def _check_request(wanted: ExportFiles) -> None:
    """Exit if the request is invalid, before the recording is read, which can take long."""
    for path, ending in zip(wanted, ENDINGS, strict=True):
        if path is None or ending is None:
            continue
        packed = "" if path is wanted.parquet else f" or {ending}.gz"
        name = path.name.removesuffix(".gz") if packed else path.name
        if not name.endswith(ending):
            exit_with(WRONG_USAGE, f"{path} must end in {ending}{packed}.")
    for name, package in EXTRAS.items():
        if getattr(wanted, name) is not None and find_spec(package) is None:
            exit_with(
                NOTHING_EXAMINED,
                f"--{name} needs the package {package}, which is not installed: "
                f"{sys.executable} -m pip install 'mgpu-doctor[{name}]'",
            )


def _write_timeline(path: Path, diagnosis: Diagnosis) -> str:
    from mgpu_doctor.export import step_table, timeline

    return _format_size(step_table.write(path, timeline.lines(diagnosis)))


def _write_csv(path: Path, diagnosis: Diagnosis) -> str:
    from mgpu_doctor.export import step_table

    return _format_size(step_table.write(path, step_table.lines(diagnosis.case)))


def _write_parquet(path: Path, diagnosis: Diagnosis) -> str:
    from mgpu_doctor.export import optional_formats

    return _format_size(optional_formats.write_parquet(path, diagnosis.case))


def _write_tensorboard(path: Path, diagnosis: Diagnosis) -> str:
    from mgpu_doctor.export import optional_formats

    written, measured = optional_formats.write_scalars(path, diagnosis)
    return f"{written} of {measured} ranks; show it with `tensorboard --logdir {path}`"


def _format_size(count: int) -> str:
    from mgpu_doctor.formatting import format_bytes

    return format_bytes(count)


WRITERS: dict[str, Callable[[Path, Diagnosis], str]] = {
    "timeline": _write_timeline,
    "csv": _write_csv,
    "parquet": _write_parquet,
    "tensorboard": _write_tensorboard,
}

PORT = 9877
LIBRARY = "prometheus_client"
NAME_A_FORMAT = (
    "choose a format: --timeline FILE, --csv FILE, --parquet FILE or --tensorboard FOLDER for a "
    "recording, or --serve for Prometheus. For the diagnosis, use "
    "`mgpu-doctor report RECORDING -o FILE.json`."
)


@click.command(cls=Verb)
@click.argument(
    "job",
    cls=Argument,
    required=False,
    metavar="[JOB]",
    shell_complete=complete_recording,
    help_text="A recording: its folder, its id, or `latest`. With --serve, by default every job "
    "that is running here.",
)
@click.option(
    "--timeline",
    type=FILE,
    metavar="FILE",
    help="Write a timeline for Perfetto: .json or .json.gz.",
)
@click.option("--csv", type=FILE, metavar="FILE", help="Write all steps as .csv or .csv.gz.")
@click.option("--parquet", type=FILE, metavar="FILE", help="Write all steps as .parquet.")
@click.option(
    "--tensorboard", type=FILE, metavar="FOLDER", help="Write steps as scalars for TensorBoard."
)
@click.option("--serve", is_flag=True, help="Serve OpenMetrics to Prometheus until Ctrl-C.")
@click.option(
    "--listen", default="127.0.0.1", metavar="ADDRESS", help="Address or name to listen on."
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=PORT,
    metavar="N",
    help="Port to listen on. 0 chooses a free port and prints it.",
)
@click.option(
    "--interval",
    type=Between(0.1, 3600),
    default=5.0,
    metavar="SECONDS",
    help="Seconds between samples. Requests in between get the last sample.",
)
@click.option(
    "--token-file",
    type=FILE,
    metavar="FILE",
    help="File with the access token. By default, a token is created and stored.",
)
@click.option(
    "--no-token",
    is_flag=True,
    help="Serve without a token: every local user can read the metrics. Only on loopback "
    "addresses.",
)
@host_options
def export(
    job: str | None,
    *,
    hosts: HostsRequest | None,
    timeline: Path | None,
    csv: Path | None,
    parquet: Path | None,
    tensorboard: Path | None,
    serve: bool,
    listen: str,
    port: int,
    interval: float,
    token_file: Path | None,
    no_token: bool,
) -> None:
    """Export the steps of a recording, or serve live metrics to Prometheus.

    \b
    Examples:
      mgpu-doctor export latest --timeline run.json.gz    (open it in ui.perfetto.dev)
      mgpu-doctor export latest --csv steps.csv
      mgpu-doctor export latest --parquet steps.parquet
      mgpu-doctor export latest --tensorboard scalars/
      mgpu-doctor export --serve
      mgpu-doctor export --serve --port 0 --no-token
      mgpu-doctor export --serve --hosts node1,node2
      mgpu-doctor export --serve --listen node7 --token-file /run/secrets/mgpu
    """
    wanted = ExportFiles(timeline, csv, parquet, tensorboard)
    if serve == any(wanted):
        exit_with(WRONG_USAGE, NAME_A_FORMAT)
    if hosts is not None and (job is not None or not serve):
        exit_with(WRONG_USAGE, f"{hosts.option} needs --serve, and no job.")
    if not serve:
        if job is None:
            exit_with(WRONG_USAGE, "name the recording to export: its folder, its id or `latest`.")
        write_files(job, wanted)
        return
    if no_token and token_file is not None:
        exit_with(WRONG_USAGE, "--no-token and --token-file cannot be used together.")
    try:
        from mgpu_doctor.export.access import AddressError, resolved

        address = resolved(listen, port)
    except AddressError as error:
        exit_with(WRONG_USAGE, f"{error}.")
    if no_token and not address.is_loopback:
        exit_with(
            WRONG_USAGE, f"--no-token works only with a loopback address, and {listen} is not one."
        )
    if job is None and hosts is None:
        suggest_option()
    token = None if no_token else _get_token(token_file)
    recording = None if job is None else find_recording(job)
    with _open_source(recording, hosts) as live:
        names = (os.uname().nodename, listen)
        fixed = recording is not None
        server = _make_server(address, live, token=token, names=names, fixed=fixed, every=interval)
        _serve_until_signal(server, address)


def _get_token(file: Path | None) -> str:
    from mgpu_doctor.export import access
    from mgpu_doctor.recording.home import home

    try:
        if file is not None:
            return access.given(file)
        token, new = access.kept(home())
    except access.TokenError as error:
        exit_with(NOTHING_EXAMINED, f"{error}.")
    where = home() / access.FILE
    print_message(
        f"the new access token is {token} (shown only once; stored in {where})"
        if new
        else f"the access token is in {where}"
    )
    return token


@contextmanager
def _open_source(job: Path | None, hosts: HostsRequest | None) -> Iterator[LiveJobs | HostJobs]:
    """Yields the source of the metrics: this machine and a job of it, or other hosts."""
    from mgpu_doctor.cluster.host_fleet import Fleet
    from mgpu_doctor.live.frame_source import FrameOptions
    from mgpu_doctor.live.host_jobs import HostJobs
    from mgpu_doctor.live.live_jobs import LiveJobs
    from mgpu_doctor.settings_files import settings

    options = FrameOptions(heat=False, history=False)
    live: LiveJobs | HostJobs
    if hosts is None:
        live = LiveJobs(job, settings=settings(), wanted=options)
    else:
        live = HostJobs(Fleet(*hosts.find()), settings(), options, patient=True)
        for gap in live.list_gaps():
            print_message(f"{gap.probe}: {gap.reason}: {gap.remedy}.")
    try:
        yield live
    finally:
        live.close()


def _make_server(
    address: Address,
    live: LiveJobs | HostJobs,
    *,
    token: str | None,
    names: tuple[str, str],
    fixed: bool,
    every: float,
) -> Server:
    """The server. `names`: of this host, and as the user gave it; `fixed`: whether the user named
    the job; `every`: seconds between samples."""
    try:
        from mgpu_doctor.export.http_server import Server
        from mgpu_doctor.export.metrics_page import Watching
        from mgpu_doctor.export.sampling import Sampler
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != LIBRARY:
            raise
        exit_with(
            NOTHING_EXAMINED,
            "the Prometheus client library is not installed: "
            f"{sys.executable} -m pip install 'prometheus-client>=0.23.1'",
        )
    sampler = Sampler(Watching(live, names[0], fixed=fixed).text, every)
    try:
        return Server(address, sampler, token=token, names=names)
    except OSError as error:
        where = f"{address.host} port {address.port}"
        exit_with(
            NOTHING_EXAMINED,
            f"cannot listen on {where} ({error.strerror}); --port 0 chooses a free port.",
        )


def _serve_until_signal(server: Server, address: Address) -> None:
    from mgpu_doctor.export.access import Address
    from mgpu_doctor.export.http_server import serve

    # Not an Event: waiting for it never ends if a signal comes at the wrong moment.
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer)
    for number in (signal.SIGINT, signal.SIGTERM):
        # Keep ignored signals ignored: a shell starts background jobs like this on purpose.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda *_: None)
    stop = serve(server)
    click.echo(f"OpenMetrics on {Address(address.host, server.port, address.family).url}")
    if not address.is_loopback:
        print_message(
            "the connection is not encrypted: others on the network can read the access token."
        )
    os.read(reader, 1)
    signal.set_wakeup_fd(-1)
    os.close(reader)
    os.close(writer)
    stop()
