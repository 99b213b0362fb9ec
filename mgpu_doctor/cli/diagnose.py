"""`mgpu-doctor diagnose`: which rank, why, and what to do."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mgpu_doctor.cli.options import Argument, Verb
from mgpu_doctor.cli.terminal_output import (
    NOTHING_EXAMINED,
    colour,
    leave,
    put,
    unicode,
    unswept,
    width,
)
from mgpu_doctor.launch.messages import make_one_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mgpu_doctor.findings import Diagnosis

START_ONE = "start a job with `mgpu-doctor run -- COMMAND`"


def examine(recording: Path) -> Diagnosis:
    """The diagnosis of a recording, live or finished; leaves with exit code 3 where it is none."""
    from mgpu_doctor.case.recording_case import NotARecording, load_recording
    from mgpu_doctor.cli.settings_files import settings
    from mgpu_doctor.cli.terminal_output import telling
    from mgpu_doctor.diagnose import diagnose

    chosen = settings()
    try:
        with telling() as tell:
            tell(f"examining {recording.name}")
            return diagnose(load_recording(recording), chosen)
    except NotARecording as error:
        leave(str(error), NOTHING_EXAMINED)
    except OSError as error:
        leave(f"{recording} cannot be read ({error.strerror}).", NOTHING_EXAMINED)


def recording(reference: str) -> Path:
    """The folder that `reference` names; leaves with exit code 3 where there is none."""
    from mgpu_doctor.recording.home import LATEST, find, home

    folder = find(reference)
    if folder is not None:
        return folder
    if reference == LATEST:
        leave(f"there is no recording in {home()} yet: {START_ONE}.", NOTHING_EXAMINED)
    path = Path(reference)
    if not path.is_dir():
        leave(f"{_why_not(path)}: name a recording's folder, its id or `latest`.", NOTHING_EXAMINED)
    return path


def _why_not(path: Path) -> str:
    if path.exists():
        return f"{path} is a file, which `mgpu-doctor diagnose {path}` examines"
    if path.name == str(path) and path.name.isdigit():
        return f"process {path} is no recording, but `mgpu-doctor diagnose {path}` examines it"
    if str(path) == "-":
        return "standard input is no recording, but `mgpu-doctor diagnose -` reads a log from it"
    return f"{path} does not exist"


FOUND = 1


@click.command(cls=Verb)
@click.argument(
    "subjects",
    cls=Argument,
    nargs=-1,
    metavar="[SUBJECT...]",
    told="A process id (launcher or any rank), a recording (its folder, its id, `latest`), a log "
    "(`-`: standard input), a flight-recorder dump, profiler traces, or folders of these, or a "
    "memory snapshot; several are one case. By default, every training job that runs here.",
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print one JSON object per job (docs/diagnosis.schema.json).",
)
@unswept()
def diagnose(subjects: tuple[str, ...], as_json: bool) -> None:
    """Diagnose a job: what is wrong, which rank causes it, why, and how to fix it.

    The job may be running, finished or failed. Exit code: 0 no finding at warning or worse,
    1 a finding, 2 wrong usage, 3 nothing could be examined.

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
    """
    found = _diagnosed(subjects)
    put(_json(found) if as_json else _text(found))
    codes = {_code(diagnosis) for diagnosis in found}
    raise click.exceptions.Exit(FOUND if FOUND in codes else max(codes))


def _diagnosed(subjects: Sequence[str]) -> list[Diagnosis]:
    from mgpu_doctor.cli.settings_files import settings
    from mgpu_doctor.cli.terminal_output import telling
    from mgpu_doctor.diagnose import diagnose
    from mgpu_doctor.examine.case_sources import cases
    from mgpu_doctor.examine.subjects import UnknownSubject

    chosen = settings()
    try:
        with telling() as tell:
            found = cases(subjects, tell)
            tell("examining what was found")
            return [diagnose(case, chosen) for case in found]
    except UnknownSubject as error:
        leave(str(error), NOTHING_EXAMINED)


def _json(diagnoses: Sequence[Diagnosis]) -> str:
    from mgpu_doctor.report import diagnosis_json

    return "".join(diagnosis_json.render(diagnosis) for diagnosis in diagnoses)


def _text(diagnoses: Sequence[Diagnosis]) -> str:
    from mgpu_doctor.report import terminal

    out = sys.stdout
    texts = [
        terminal.render(one, width=width(out), colour=colour(out), unicode=unicode(out))
        for one in diagnoses
    ]
    if len(texts) > 1:
        names = [make_one_line(diagnosis.case.job.id) for diagnosis in diagnoses]
        texts = [f"{name}\n{text}" for name, text in zip(names, texts, strict=True)]
    return "\n".join(texts)


def _code(diagnosis: Diagnosis) -> int:
    from mgpu_doctor.findings import Severity

    if any(finding.severity is not Severity.INFO for finding in diagnosis.findings):
        return FOUND
    case = diagnosis.case
    examined = diagnosis.ranks or case.snapshots or case.subject.kind == "log"
    return 0 if examined else NOTHING_EXAMINED
