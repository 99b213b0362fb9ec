"""`mgpu-doctor check`: what this machine lets the doctor see, and how to let it see more."""

from __future__ import annotations

import sys

import click

from mgpu_doctor.cli.options import Verb
from mgpu_doctor.cli.terminal_output import colour, put, unicode, width

IMPROVABLE = 1


@click.command(cls=Verb)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def check(as_json: bool) -> None:
    """Check what can be observed on this machine, and how to enable the rest.

    Exit code: 0 if nothing can be improved, 1 if something can.

    \b
    Examples:
      mgpu-doctor check
      mgpu-doctor check --json | jq '.checks[] | select(.level == "fail")'
    """
    from mgpu_doctor.check import check_report
    from mgpu_doctor.check.check_report import check_all
    from mgpu_doctor.check.check_result import CheckedMachine

    checked = check_all(CheckedMachine())
    out = sys.stdout
    put(
        check_report.as_json(checked)
        if as_json
        else check_report.render(
            checked, width=width(out), colour=colour(out), unicode=unicode(out)
        )
    )
    raise click.exceptions.Exit(IMPROVABLE if any(one.improvable for one in checked) else 0)
