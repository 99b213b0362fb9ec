"""`mgpu-doctor check`: what can be observed on this machine, and how to observe more."""

from __future__ import annotations

import sys

import click

from mgpu_doctor.cli.options import Verb
from mgpu_doctor.cli.terminal_output import display_of, print_text

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

    results = check_all(CheckedMachine())
    print_text(
        check_report.render_json(results)
        if as_json
        else check_report.render_text(results, **display_of(sys.stdout))
    )
    raise click.exceptions.Exit(IMPROVABLE if any(each.is_improvable for each in results) else 0)
