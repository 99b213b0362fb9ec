"""`mgpu-doctor diagnose`: what is wrong with a job, which rank causes it, and how to fix it."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mgpu_doctor.cli.completers import complete_recording
from mgpu_doctor.cli.host_options import HostsRequest, host_options, suggest_option
from mgpu_doctor.cli.options import Argument, Verb
from mgpu_doctor.cli.terminal_output import (
    NOTHING_EXAMINED,
    WRONG_USAGE,
    display_of,
    exit_with,
    keep_until_exit,
    pause_garbage_collection,
    print_text,
    progress_line,
)
from mgpu_doctor.launch.messages import make_one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mgpu_doctor.case.model import Case
    from mgpu_doctor.findings import Diagnosis


def diagnose_recording(recording: Path) -> Diagnosis:
    """The diagnosis of a recording; exits with code 3 if the folder cannot be read as one."""
    from mgpu_doctor.case.earlier_runs import load_with_earlier_runs
    from mgpu_doctor.case.recording_case import NotARecording
    from mgpu_doctor.diagnosis import diagnose
    from mgpu_doctor.settings_files import settings

    chosen = settings()
    try:
        with progress_line() as report_progress:
            report_progress(f"examining {recording.name}")
            return diagnose(load_with_earlier_runs(recording), chosen)
    except NotARecording as error:
        exit_with(NOTHING_EXAMINED, str(error))
    except OSError as error:
        exit_with(NOTHING_EXAMINED, f"{recording} cannot be read ({error.strerror}).")


def find_recording(reference: str) -> Path:
    """The folder of the recording `reference`. Raises DoctorError if it does not exist."""
    from mgpu_doctor.api import verb_requests

    return verb_requests.find_recording(reference)


@click.command(cls=Verb)
@click.argument(
    "subjects",
    cls=Argument,
    nargs=-1,
    metavar="[SUBJECT...]",
    shell_complete=complete_recording,
    help_text="A process id (launcher or any rank), a recording (its folder, its id, `latest`), "
    "a log (`-`: standard input), a flight-recorder dump, profiler traces, a folder of these, or a "
    "memory snapshot. Logs, dumps and traces named together with a job are examined with it. "
    "By default, every training job that is running here.",
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print one JSON object per job (docs/diagnosis.schema.json).",
)
@click.option(
    "--verbose",
    "-v",
    is_flag=True,
    help="List which causes were ruled out and what was not measured, with reasons.",
)
@host_options
@pause_garbage_collection()
def diagnose(
    subjects: tuple[str, ...], *, as_json: bool, verbose: bool, hosts: HostsRequest | None
) -> None:
    """Diagnose a job: what is wrong, which rank causes it, why, and how to fix it.

    The job may be running, finished or failed. Exit code: 0 no warning or worse, 1 at least one
    warning or worse, 2 wrong usage, 3 nothing could be examined.

    \b
    Examples:
      mgpu-doctor diagnose 12345
      mgpu-doctor diagnose latest
      mgpu-doctor diagnose train.log
      mgpu-doctor diagnose nccl_dumps/ slurm-77.out
      mgpu-doctor diagnose snapshot.pickle
      mgpu-doctor diagnose traces/
      mgpu-doctor diagnose runs/today --json | jq '.findings[0].title'
      mgpu-doctor diagnose
      mgpu-doctor diagnose --hosts node1,node2
      mgpu-doctor diagnose --slurm 4711
      mgpu-doctor diagnose --k8s jobset.sigs.k8s.io/jobset-name=llama -n training
    """
    from mgpu_doctor.api.verb_requests import HAS_FINDINGS, diagnose_cases, find_exit_code

    if hosts is not None and subjects:
        exit_with(WRONG_USAGE, f"name either {hosts.option} or a subject, not both.")
    if hosts is None and not subjects:
        suggest_option()
    with progress_line() as report_progress:
        diagnoses = diagnose_cases(partial(_load, subjects, hosts), report_progress)
    keep_until_exit(diagnoses)
    named = not subjects or len(diagnoses) > 1
    print_text(
        _render_json(diagnoses)
        if as_json
        else _render_text(diagnoses, verbose=verbose, named=named)
    )
    codes = {find_exit_code(diagnosis) for diagnosis in diagnoses}
    raise click.exceptions.Exit(HAS_FINDINGS if HAS_FINDINGS in codes else max(codes))


def _load(
    subjects: Sequence[str], hosts: HostsRequest | None, report_progress: Callable[[str], None]
) -> list[Case]:
    if hosts is None:
        from mgpu_doctor.examine.case_sources import load_cases

        return load_cases(subjects, report_progress)
    from mgpu_doctor.examine.host_cases import load_host_cases

    return load_host_cases(*hosts.find(), report_progress)


def _render_json(diagnoses: Sequence[Diagnosis]) -> str:
    from mgpu_doctor.report import diagnosis_json

    return "".join(diagnosis_json.render(diagnosis) for diagnosis in diagnoses)


def _render_text(diagnoses: Sequence[Diagnosis], *, verbose: bool, named: bool) -> str:
    """`named`: above each diagnosis stands which job it is about."""
    from mgpu_doctor.report import terminal
    from mgpu_doctor.report.command_names import name_job

    display = display_of(sys.stdout)
    texts = [terminal.render(diagnosis, **display, verbose=verbose) for diagnosis in diagnoses]
    if named:
        names = [name_job(diagnosis.case, display["width"]) for diagnosis in diagnoses]
        texts = [f"{make_one_line(name)}\n{text}" for name, text in zip(names, texts, strict=True)]
    return "\n".join(texts)
