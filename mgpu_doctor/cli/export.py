"""`mgpu-doctor export`: files for other programs, or metrics for Prometheus."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from mgpu_doctor.cli.diagnose import examine, recording
from mgpu_doctor.cli.options import FILE, Argument, Between, Verb
from mgpu_doctor.cli.terminal_output import NOTHING_EXAMINED, leave, put_line
from mgpu_doctor.launch.messages import print_message

if TYPE_CHECKING:
    from mgpu_doctor.export.access import Address
    from mgpu_doctor.export.http_server import Server
    from mgpu_doctor.findings import Diagnosis

_WRONG = 2


class ExportFiles(NamedTuple):
    """The files to write; None: not requested."""

    timeline: Path | None = None
    csv: Path | None = None
    parquet: Path | None = None
    tensorboard: Path | None = None


ENDINGS = (".json", ".csv", ".parquet", None)
EXTRAS = {"parquet": "pyarrow", "tensorboard": "tensorboardX"}
"""What is asked for -> the package that writes it; the extra has the first one's name."""


def write_files(job: str, wanted: ExportFiles) -> None:
    """All that is wanted, each with a line on how large it is; leaves where one cannot be."""
    _check(wanted)
    from mgpu_doctor.cli.terminal_output import telling

    with telling() as tell:
        tell("reading the recording")
        diagnosis = examine(recording(job))
        if wanted != ExportFiles(timeline=wanted.timeline) and not _has_steps(diagnosis):
            leave(
                f"{job} contains no steps: `mgpu-doctor diagnose {job}` says why.", NOTHING_EXAMINED
            )
        for name, path in wanted._asdict().items():
            if path is None:
                continue
            tell(f"writing {path.name}")
            try:
                told = WRITERS[name](path, diagnosis)
            except OSError as error:
                leave(f"{path} cannot be written ({error.strerror or error}).", _WRONG)
            put_line(f"{path}: {told}")


def _has_steps(diagnosis: Diagnosis) -> bool:
    return any(len(rank.steps) for rank in (*diagnosis.case.earlier, *diagnosis.case.ranks))


def _check(wanted: ExportFiles) -> None:
    """Before the recording is read, which may take long."""
    for path, ending in zip(wanted, ENDINGS, strict=True):
        if path is None or ending is None:
            continue
        packed = "" if path is wanted.parquet else f" or {ending}.gz"
        name = path.name.removesuffix(".gz") if packed else path.name
        if not name.endswith(ending):
            leave(f"{path} must end in {ending}{packed}.", _WRONG)
    for name, package in EXTRAS.items():
        if getattr(wanted, name) is not None and find_spec(package) is None:
            leave(
                f"--{name} needs {package}, which is missing: "
                f"{sys.executable} -m pip install 'mgpu-doctor[{name}]'",
                NOTHING_EXAMINED,
            )


def _timeline(path: Path, diagnosis: Diagnosis) -> str:
    from mgpu_doctor.export import step_table, timeline

    return _size(step_table.write(path, timeline.lines(diagnosis)))


def _csv(path: Path, diagnosis: Diagnosis) -> str:
    from mgpu_doctor.export import step_table

    return _size(step_table.write(path, step_table.lines(diagnosis.case)))


def _parquet(path: Path, diagnosis: Diagnosis) -> str:
    from mgpu_doctor.export import optional_formats

    return _size(optional_formats.write_parquet(path, diagnosis.case))


def _tensorboard(path: Path, diagnosis: Diagnosis) -> str:
    from mgpu_doctor.export import optional_formats

    written, known = optional_formats.write_scalars(path, diagnosis)
    return f"{written} of {known} ranks; look at it with `tensorboard --logdir {path}`"


def _size(count: int) -> str:
    from mgpu_doctor.formatting import format_bytes

    return format_bytes(count)


WRITERS: dict[str, Callable[[Path, Diagnosis], str]] = {
    "timeline": _timeline,
    "csv": _csv,
    "parquet": _parquet,
    "tensorboard": _tensorboard,
}

WRONG_USAGE = 2
PORT = 9877
LIBRARY = "prometheus_client"
SAY_WHAT = (
    "say what: --timeline FILE, --csv FILE, --parquet FILE or --tensorboard FOLDER of a "
    "recording, or --serve for Prometheus "
    "(`report RECORDING -o FILE.json` has the diagnosis)."
)


@click.command(cls=Verb)
@click.argument(
    "job",
    cls=Argument,
    required=False,
    metavar="[JOB]",
    told="A recording's folder, its id, or `latest`; none: what runs here.",
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
    help="Port to listen on; 0 takes a free one and prints it.",
)
@click.option(
    "--interval",
    type=Between(0.1, 3600),
    default=5.0,
    metavar="SECONDS",
    help="Seconds for which a sample is served before a new one is taken.",
)
@click.option(
    "--token-file",
    type=FILE,
    metavar="FILE",
    help="File that holds the access token; by default one is created.",
)
@click.option(
    "--no-token",
    is_flag=True,
    help="Let every local user read the metrics; only on loopback addresses.",
)
def export(
    job: str | None,
    *,
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
      mgpu-doctor export --serve --listen node7 --token-file /run/secrets/mgpu
    """
    wanted = ExportFiles(timeline, csv, parquet, tensorboard)
    if serve == any(wanted):
        leave(SAY_WHAT, WRONG_USAGE)
    if not serve:
        if job is None:
            leave("name the recording to export: its folder, its id or `latest`.", WRONG_USAGE)
        write_files(job, wanted)
        return
    if no_token and token_file is not None:
        leave("--no-token and --token-file exclude each other: use one of them.", WRONG_USAGE)
    try:
        from mgpu_doctor.export.access import AddressError, resolved

        address = resolved(listen, port)
    except AddressError as error:
        leave(f"{error}.", WRONG_USAGE)
    if no_token and not address.is_loopback:
        leave(f"--no-token is for loopback only, and {listen} is not.", WRONG_USAGE)
    server = _server(
        address,
        listen,
        token=None if no_token else _token(token_file),
        job=None if job is None else recording(job),
        interval=interval,
    )
    _run(server, address)


def _token(file: Path | None) -> str:
    from mgpu_doctor.export import access
    from mgpu_doctor.recording.home import home

    try:
        if file is not None:
            return access.given(file)
        kept, new = access.kept(home())
    except access.TokenError as error:
        leave(f"{error}.", NOTHING_EXAMINED)
    where = home() / access.FILE
    told = f"the token, shown only this once, is {kept}; it is stored" if new else "the token is"
    print_message(f"{told} in {where}")
    return kept


def _server(
    address: Address, listen: str, *, token: str | None, job: Path | None, interval: float
) -> Server:
    try:
        from mgpu_doctor.export.http_server import Server
        from mgpu_doctor.export.metrics_page import Watching
        from mgpu_doctor.export.sampling import Sampler
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != LIBRARY:
            raise
        leave(
            "the Prometheus client library is missing: "
            f"{sys.executable} -m pip install 'prometheus-client>=0.23.1'",
            NOTHING_EXAMINED,
        )
    from mgpu_doctor.cli.settings_files import settings
    from mgpu_doctor.live.frame_source import FrameOptions
    from mgpu_doctor.live.live_jobs import LiveJobs

    here = os.uname().nodename
    live = LiveJobs(job, settings=settings(), wanted=FrameOptions(heat=False, history=False))
    watching = Watching(live, here, fixed=job is not None)
    sampler = Sampler(watching.text, interval)
    try:
        return Server(address, sampler, token=token, names=(here, listen))
    except OSError as error:
        where = f"{address.host} port {address.port}"
        leave(
            f"cannot listen on {where} ({error.strerror}); --port 0 takes a free port.",
            NOTHING_EXAMINED,
        )


def _run(server: Server, address: Address) -> None:
    from mgpu_doctor.export.access import Address
    from mgpu_doctor.export.http_server import serve

    over = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        # One that is ignored was meant to be: so does a shell start what it puts in the background.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda *_: over.set())
    stop = serve(server)
    click.echo(f"OpenMetrics on {Address(address.host, server.port, address.family).url}")
    if not address.is_loopback:
        print_message("the connection is not encrypted: others on the network can read the token.")
    over.wait()
    stop()
