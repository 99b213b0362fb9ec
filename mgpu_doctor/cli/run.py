"""`mgpu-doctor run`: any training command, under observation."""

from __future__ import annotations

from pathlib import Path

import click

from mgpu_doctor.cli.observed import DIRECTORY, JSON_OUT, QUIET, OnHang, run_observed
from mgpu_doctor.cli.options import Argument, Verb


@click.command(cls=Verb, context_settings={"allow_interspersed_args": False})
@click.argument(
    "command",
    cls=Argument,
    nargs=-1,
    required=True,
    metavar="-- COMMAND…",
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
def run(
    command: tuple[str, ...],
    *,
    directory: Path | None,
    json_out: Path | None,
    quiet: bool,
    no_capture: bool,
    on_hang: OnHang,
) -> None:
    """Run any training command under observation, without changes to it.

    The job prints, behaves and exits as without mgpu-doctor. When it ends, the diagnosis is printed
    on standard error. Exit code: that of the job, or 128 + N if signal N ended it.

    \b
    Examples:
      mgpu-doctor run -- torchrun --nproc-per-node 4 train.py
      mgpu-doctor run --dir runs/today -- python train.py --epochs 3
      mgpu-doctor run --json-out diagnosis.json -- torchrun train.py 2> log.txt
    """
    run_observed(
        command,
        kind="run",
        directory=directory,
        json_out=json_out,
        quiet=quiet,
        capture=not no_capture,
        on_hang=on_hang,
    )
