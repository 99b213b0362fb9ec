"""`mgpu-doctor check`: what can be observed on this machine, and how to observe more."""

from __future__ import annotations

import os
import sys

import click

from mgpu_doctor.cli.options import Verb
from mgpu_doctor.cli.terminal_output import (
    NOTHING_EXAMINED,
    display_of,
    exit_with,
    print_text,
    progress_line,
)

IMPROVABLE = 1


@click.command(cls=Verb)
@click.option(
    "--gpu",
    "tests_gpu",
    is_flag=True,
    help="Test how steps are timed on this machine's GPU, with a training of a few seconds.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def check(tests_gpu: bool, as_json: bool) -> None:
    """Check what can be observed on this machine, and how to enable the rest.

    Exit code: 0 if nothing can be improved, 1 if something can; 3 if --gpu finds no GPU or no
    PyTorch.

    \b
    Examples:
      mgpu-doctor check
      mgpu-doctor check --json | jq '.checks[] | select(.level == "fail")'
      mgpu-doctor check --gpu
    """
    from mgpu_doctor.check import check_report
    from mgpu_doctor.check.check_report import check_all
    from mgpu_doctor.check.check_result import CheckedMachine

    if tests_gpu:
        _test_gpu(as_json)
    results = check_all(CheckedMachine())
    print_text(
        check_report.render_json(results)
        if as_json
        else check_report.render_text(results, **display_of(sys.stdout))
    )
    raise click.exceptions.Exit(
        IMPROVABLE if any(checked.is_improvable for checked in results) else 0
    )


def _test_gpu(as_json: bool) -> None:
    from mgpu_doctor.check import check_report, device_selftest

    try:
        with progress_line() as show:
            show("training on the GPU for a few seconds, with and without the probe")
            test = device_selftest.run_selftest(os.environ)
    except device_selftest.CannotTestError as reason:
        exit_with(NOTHING_EXAMINED, str(reason))
    print_text(
        check_report.render_json(test.results, test.numbers)
        if as_json
        else check_report.render_text(
            test.results, headline=test.headline, **display_of(sys.stdout)
        )
    )
    wrong = any(checked.is_improvable for checked in test.results)
    raise click.exceptions.Exit(IMPROVABLE if wrong else 0)
