"""`mgpu-doctor run`: any training command, under observation."""

from __future__ import annotations

import os
from pathlib import Path

import click

from mgpu_doctor.cli.completers import complete_file
from mgpu_doctor.cli.observed import DIRECTORY, JSON_OUT, QUIET, OnHang, refuse, run_observed
from mgpu_doctor.cli.options import FILE, Argument, Verb


@click.command(cls=Verb, context_settings={"allow_interspersed_args": False})
@click.argument(
    "command",
    cls=Argument,
    nargs=-1,
    required=True,
    metavar="-- COMMAND…",
    shell_complete=complete_file,
    help_text="The command to run, with its arguments.",
)
@DIRECTORY
@JSON_OUT
@QUIET
@click.option(
    "--no-capture",
    is_flag=True,
    help="Do not record the job's output. Needed for full-screen programs and shells.",
)
@click.option(
    "--on-hang",
    type=click.Choice(OnHang),
    default=OnHang.tell,
    help="When the job hangs: tell (report it and keep watching) or stop (report it, and send "
    "SIGTERM after 30 s).",
)
@click.option(
    "--notify",
    metavar="COMMAND",
    help="Start COMMAND in a shell, with JSON on its standard input, for each finding at warning "
    "or worse, for a stall, and for the end (docs/notify.md). The job does not wait for it.",
)
@click.option(
    "--hosts",
    metavar="HOST,HOST...",
    help="If the job is started on several nodes with disks of their own: their names for `ssh`, "
    "by which the first one fetches what the others record (docs/run.md).",
)
@click.option(
    "--treat",
    "treatments",
    type=FILE,
    metavar="FILE",
    help="Apply the treatments in FILE, which `mgpu-doctor treat -o FILE` wrote.",
)
def run(
    command: tuple[str, ...],
    *,
    directory: Path | None,
    json_out: Path | None,
    quiet: bool,
    no_capture: bool,
    on_hang: OnHang,
    notify: str | None,
    hosts: str | None,
    treatments: Path | None,
) -> None:
    """Run any training command under observation, without changes to it.

    The job prints, behaves and exits as without mgpu-doctor. When it ends, the diagnosis is printed
    on standard error. Exit code: that of the job, or 128 + N if signal N ended it.

    \b
    Examples:
      mgpu-doctor run -- torchrun --nproc-per-node 4 train.py
      mgpu-doctor run --dir runs/today -- python train.py --epochs 3
      mgpu-doctor run --json-out diagnosis.json -- torchrun train.py 2> log.txt
      mgpu-doctor run --treat treatment.toml -- torchrun train.py
      mgpu-doctor run --notify 'mail -s training me@example.org' -- torchrun train.py
    """
    treated = None if treatments is None else _read_file(treatments)
    run_observed(
        command,
        kind="run",
        directory=directory,
        json_out=json_out,
        quiet=quiet,
        capture=not no_capture,
        on_hang=on_hang,
        environment=None if treated is None else treated[0],
        facts={} if treated is None else {"treated": treated[1]},
        notify=notify,
        hosts=hosts,
    )


def _read_file(file: Path) -> tuple[dict[str, str], dict[str, object]]:
    """The environment in which the job gets the treatments of a file, and what the recording holds
    of them; exits with code 2 if it cannot be used."""
    from mgpu_doctor.treat.treatment_file import (
        TreatmentFileError,
        read_treatments,
        treated_environment,
    )

    try:
        treatments = read_treatments(file)
    except TreatmentFileError as error:
        refuse(str(error))
    return treated_environment(os.environ, treatments.values), treatments.describe()
