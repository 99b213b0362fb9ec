"""Runs a command under observation, prints the diagnosis, and exits as the job did."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from enum import Enum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from mgpu_doctor.cli.options import FILE
from mgpu_doctor.cli.terminal_output import WRONG_USAGE
from mgpu_doctor.formatting import format_count
from mgpu_doctor.launch.hang_watchdog import Alarm
from mgpu_doctor.launch.messages import make_one_line, print_message

if TYPE_CHECKING:
    from mgpu_doctor.findings import Diagnosis
    from mgpu_doctor.launch.node_group import NodeGroup
    from mgpu_doctor.live.job_notices import JobNotices
    from mgpu_doctor.rules.settings import Settings


DIRECTORY = click.option(
    "--dir",
    "directory",
    type=FILE,
    metavar="DIR",
    help="Write the recording to DIR, which must be new or empty.",
)
JSON_OUT = click.option(
    "--json-out", type=FILE, metavar="FILE", help="Also write the diagnosis to FILE, as JSON."
)
QUIET = click.option("--quiet", "-q", is_flag=True, help="Do not print a diagnosis at the end.")


class OnHang(str, Enum):
    """What to do with a hung job after its evidence is recorded."""

    tell = "tell"
    stop = "stop"


def run_observed(
    command: Sequence[str],
    *,
    kind: str,
    directory: Path | None,
    json_out: Path | None,
    quiet: bool,
    capture: bool = True,
    name: str | None = None,
    on_hang: OnHang = OnHang.tell,
    environment: Mapping[str, str] | None = None,
    facts: Mapping[str, object] | None = None,
    notify: str | None = None,
    hosts: str | None = None,
) -> NoReturn:
    """Run `command` under observation and exit with its exit code, or 128 + the signal number.
    `environment`: the job's; None: this process's. `facts`: further entries of `recording.json`.
    `notify`: a command of the user's that gets findings, stalls and the end. `hosts`: names for
    `ssh` of the nodes of the job."""
    from mgpu_doctor.launch.job_command import CannotStartError
    from mgpu_doctor.launch.job_nodes import find_job_nodes
    from mgpu_doctor.launch.node_group import NodeGroup
    from mgpu_doctor.launch.observe import OccupiedError, observe

    if json_out is not None and not _is_writable(json_out):
        refuse(f"{json_out} cannot be written: name another file with --json-out.")
    given = os.environ if environment is None else environment
    nodes = find_job_nodes(given, command) if kind == "run" else None
    if hosts is not None:
        _require_hosts(hosts)
        if nodes is None:
            refuse(_NO_NODES)
    group = None if nodes is None else NodeGroup(nodes, hosts)
    follows = group is not None and group.follows
    silent_hangs = quiet or (group is not None and not group.reports_hangs)
    notices = None if notify is None or follows else _make_notices(notify)
    silent = quiet and json_out is None and notices is None
    removed: list[str] = []
    try:
        observed = observe(
            command,
            directory=directory,
            kind=kind,
            name=name,
            capture=capture,
            meanwhile=partial(_prepare_and_tidy, removed, group, silent=silent),
            alarm=partial(_make_alarm, on_hang, silent_hangs, notices),
            environment=environment,
            facts=facts or {},
            nodes=nodes,
        )
    except OccupiedError as occupied:
        refuse(f"{occupied} Name a new or empty folder with --dir.")
    except CannotStartError as failure:
        print_message(str(failure))
        raise click.exceptions.Exit(failure.code) from None
    leads = observed.leads
    if group is not None and observed.recording is not None:
        try:
            leads = group.finish(observed, observed.recording, quiet=quiet)
        except KeyboardInterrupt:
            print_message("the other nodes were not waited for.")
        except Exception as error:  # it must not change the exit code of the job
            print_message(f"the nodes were not joined ({type(error).__name__}: {error}).")
    if observed.recording is not None and leads and not silent:
        try:
            diagnosis = _report_diagnosis(observed.recording, json_out, quiet)
            if notices is not None:
                _send_end(notices, observed.exit_code, diagnosis)
        except KeyboardInterrupt:
            print_message(
                f"the diagnosis was interrupted; run `mgpu-doctor diagnose {observed.recording}`."
            )
    if removed and not quiet:
        print_message(
            f"removed old recordings to free space: {', '.join(removed)} "
            "(see `mgpu-doctor runs --help`)."
        )
    raise click.exceptions.Exit(observed.exit_code)


_NO_NODES = (
    "--hosts needs a job that is started on each of its nodes: torchrun or accelerate with the "
    "number of nodes, this one's and an address. It is not needed in a Slurm step."
)


def _require_hosts(hosts: str) -> None:
    """Exit with code 2 unless these are names of hosts."""
    from mgpu_doctor.cluster.openssh import parse_hosts
    from mgpu_doctor.errors import DoctorError

    try:
        parse_hosts(hosts)
    except DoctorError as error:
        refuse(str(error))


def refuse(sentence: str) -> NoReturn:
    """Print what is wrong with the command line and exit with code 2."""
    print_message(sentence)
    raise click.exceptions.Exit(WRONG_USAGE)


def _make_notices(command: str) -> JobNotices:
    from mgpu_doctor.live.job_notices import JobNotices

    return JobNotices(command, _diagnose)


def _send_end(notices: JobNotices, exit_code: int, diagnosis: Diagnosis | None) -> None:
    notices.report_end(exit_code, diagnosis)
    if notices.failures:
        print_message(
            f"--notify: {format_count(notices.failures, 'call')} failed or took too long."
        )


def _make_alarm(on_hang: OnHang, quiet: bool, notices: JobNotices | None, recording: Path) -> Alarm:
    """What to print and do when the job hangs, after its evidence was recorded. It is stopped as by
    a SIGTERM that we and the other tasks on this host get: passed on, and recorded as what asked
    the job to end."""
    from mgpu_doctor.recording.live_recordings import list_task_recorders

    if notices is not None:
        notices.watch(recording)

    def report_hang(seconds: float) -> None:
        if notices is not None:
            notices.report_stall(seconds)
        if quiet:
            return
        diagnosis = _diagnose(recording)
        findings = diagnosis.findings if diagnosis is not None else ()
        cause = f": {findings[0].title[:1].lower()}{findings[0].title[1:]}" if findings else ""
        print_message(
            f"the job has made no progress for {seconds:.0f} s{cause} "
            f"(details: `mgpu-doctor diagnose {recording}`)."
        )

    def react_to_hang(seconds: float) -> None:
        if on_hang is OnHang.stop:
            print_message(f"stopping the job: no progress for {seconds:.0f} s (--on-hang=stop).")
            for pid in (os.getpid(), *list_task_recorders(recording)):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)

    return Alarm(report_hang, react_to_hang)


def _prepare_and_tidy(
    removed: list[str], group: NodeGroup | None, recording: Path | None, *, silent: bool
) -> None:
    """Import the diagnosis and remove old recordings while the job runs, not at its end. Fetch what
    other nodes record."""
    from mgpu_doctor.recording.retention import tidy

    if group is not None and recording is not None:
        group.begin(recording)
    if not silent:
        _import_diagnosis()
    removed += [recording.id for recording in tidy(time.time())]


def _import_diagnosis() -> None:
    """Import the modules of the diagnosis."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # else numpy starts a thread per core
    try:
        from mgpu_doctor import diagnosis  # noqa: F401 - imported in advance
        from mgpu_doctor.case import recording_case  # noqa: F401 - imported in advance
        from mgpu_doctor.report import terminal  # noqa: F401 - imported in advance
    except ImportError:
        pass  # reported when the diagnosis is made


def _report_diagnosis(recording: Path, json_out: Path | None, quiet: bool) -> Diagnosis | None:
    """Print or write the diagnosis and return it; None if it could not be made."""
    diagnosis = _diagnose(recording)
    if diagnosis is None:
        return None
    from mgpu_doctor.report.kept_verdict import save_verdict

    save_verdict(recording, diagnosis)
    if not quiet:
        from mgpu_doctor.report import terminal

        text = terminal.render(
            diagnosis, width=_width(), colour=_colour(), unicode=_speaks_unicode()
        )
        start = "\n" if _is_in_mid_line(recording) else ""
        _print(f"{start}{text.rstrip()}\n\nRecording: {make_one_line(str(recording))}\n")
    if json_out is not None:
        from mgpu_doctor.report import diagnosis_json

        try:
            _write(json_out, diagnosis_json.render(diagnosis))
        except OSError as error:
            print_message(f"{json_out} cannot be written ({error.strerror}).")
    return diagnosis


def _is_in_mid_line(recording: Path) -> bool:
    """Whether the job's output ends in an unfinished line, such as a progress bar."""
    from mgpu_doctor.case.captured_console import read_streams
    from mgpu_doctor.recording.joint_recordings import name_host

    last = read_streams(recording, most=1)
    own = [
        f"{host}{stream}" for host in ("", f"{name_host()} ") for stream in ("console", "stderr")
    ]
    return any(last[stream][-1] for stream in own if stream in last)


def _diagnose(recording: Path) -> Diagnosis | None:
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        from mgpu_doctor.case.earlier_runs import load_with_earlier_runs
        from mgpu_doctor.diagnosis import diagnose

        return diagnose(load_with_earlier_runs(recording), _read_settings_or_defaults())
    except Exception as error:
        # A bug of the doctor must not change the exit code of the job. `mgpu-doctor diagnose`
        # on the recording shows the same error with its traceback.
        print_message(
            f"the diagnosis failed ({type(error).__name__}: {error}); the recording is "
            f"in {recording}"
        )
        return None


def _read_settings_or_defaults() -> Settings:
    """The user's settings, or the defaults if they are invalid: the job still gets a diagnosis."""
    from mgpu_doctor.rules.settings import DEFAULTS, SettingsError
    from mgpu_doctor.settings_files import read_settings, working_folder

    try:
        return read_settings(working_folder())
    except SettingsError as error:
        print_message(f"{error}. Using the default settings.")
        return DEFAULTS


def _print(text: str) -> None:
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except (OSError, AttributeError):
        pass  # standard error is closed or has no reader


def _width() -> int:
    if sys.stderr is not None and sys.stderr.isatty():
        return os.get_terminal_size(sys.stderr.fileno()).columns or 80
    return shutil.get_terminal_size().columns


def _colour() -> bool:
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return not plain and sys.stderr is not None and sys.stderr.isatty()


def _speaks_unicode() -> bool:
    encoding = getattr(sys.stderr, "encoding", None) or "ascii"
    return encoding.lower().replace("-", "").startswith("utf")


def _is_writable(file: Path) -> bool:
    place = file if file.exists() else file.parent
    return not file.is_dir() and os.access(place, os.W_OK)


def _write(file: Path, text: str) -> None:
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(descriptor, "w", encoding="utf-8") as stream:
        stream.write(text)
