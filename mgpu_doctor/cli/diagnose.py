"""`mgpu-doctor diagnose`: who is to blame, why, and what to do."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from mgpu_doctor.cli import app
from mgpu_doctor.cli.examined import START_ONE, examine, recording
from mgpu_doctor.cli.output import NOTHING_EXAMINED, colour, leave, put, unicode, width

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from mgpu_doctor.findings import Diagnosis

FOUND = 1


@app.command()
def diagnose(
    subjects: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SUBJECT...",
            help="A recording's folder, its id, or `latest`; none: observed jobs that run here.",
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object a job (docs/diagnosis.schema.json).")
    ] = False,
) -> None:
    """Say what is wrong with a job, who is to blame, why, and what to do.

    The job may be running, over or dead. Exit code: 0 nothing at warning or worse, 1 something,
    2 wrong usage, 3 nothing could be examined.

    \b
    Examples:
      mgpu-doctor diagnose latest
      mgpu-doctor diagnose runs/today --json | jq '.findings[0].title'
      mgpu-doctor diagnose
    """
    folders = [recording(subject) for subject in subjects] if subjects else _running()
    diagnoses = [examine(folder) for folder in folders]
    put(_json(diagnoses) if as_json else _text(diagnoses, folders))
    codes = {_code(diagnosis) for diagnosis in diagnoses}
    raise typer.Exit(FOUND if FOUND in codes else max(codes))


def _running() -> Sequence[Path]:
    from mgpu_doctor.recording.living import living

    folders = living()
    if not folders:
        leave(
            f"no observed job runs on this machine: {START_ONE}, or name a recording (`latest`).",
            NOTHING_EXAMINED,
        )
    return folders


def _json(diagnoses: Sequence[Diagnosis]) -> str:
    from mgpu_doctor.report import json

    return "".join(json.render(diagnosis) for diagnosis in diagnoses)


def _text(diagnoses: Sequence[Diagnosis], folders: Sequence[Path]) -> str:
    from mgpu_doctor.report import terminal

    out = sys.stdout
    texts = [
        terminal.render(one, width=width(out), colour=colour(out), unicode=unicode(out))
        for one in diagnoses
    ]
    if len(texts) > 1:
        texts = [f"{folder.name}\n{text}" for folder, text in zip(folders, texts, strict=True)]
    return "\n".join(texts)


def _code(diagnosis: Diagnosis) -> int:
    from mgpu_doctor.findings import Severity

    if any(finding.severity is not Severity.INFO for finding in diagnosis.findings):
        return FOUND
    return 0 if diagnosis.ranks else NOTHING_EXAMINED
