"""`mgpu-doctor check`: what this machine lets the doctor see, and how to let it see more."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from mgpu_doctor.cli import app
from mgpu_doctor.cli.output import colour, put, unicode, width

IMPROVABLE = 1


@app.command()
def check(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Say what this machine lets the doctor see, and how to let it see more.

    Exit code: 0 nothing can be improved, 1 something can.

    \b
    Examples:
      mgpu-doctor check
      mgpu-doctor check --json | jq '.checks[] | select(.level == "fail")'
    """
    from mgpu_doctor.check import table
    from mgpu_doctor.check.catalogue import check_all
    from mgpu_doctor.check.model import Machine

    checked = check_all(Machine())
    out = sys.stdout
    put(
        table.as_json(checked)
        if as_json
        else table.render(checked, width=width(out), colour=colour(out), unicode=unicode(out))
    )
    raise typer.Exit(IMPROVABLE if any(one.improvable for one in checked) else 0)
