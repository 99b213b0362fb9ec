"""`mgpu-doctor run`: any training command, under observation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mgpu_doctor.cli import app
from mgpu_doctor.cli.observed import (
    DIRECTORY,
    JSON_OUT,
    NO_CAPTURE,
    ON_HANG,
    QUIET,
    OnHang,
    run_and_tell,
)


@app.command(context_settings={"allow_interspersed_args": False})
def run(
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND…", help="What to run.")],
    *,
    directory: Annotated[Path | None, DIRECTORY] = None,
    json_out: Annotated[Path | None, JSON_OUT] = None,
    quiet: Annotated[bool, QUIET] = False,
    no_capture: Annotated[bool, NO_CAPTURE] = False,
    on_hang: Annotated[OnHang, ON_HANG] = OnHang.tell,
) -> None:
    """Run any training command under observation, without a change to it.

    The job prints, behaves and exits as without it. When it is over, the diagnosis follows on
    standard error. Exit code: the job's own, 128 + N where signal N ended it.

    \b
    Examples:
      mgpu-doctor run -- torchrun --nproc-per-node 4 train.py
      mgpu-doctor run --dir runs/today -- python train.py --epochs 3
      mgpu-doctor run --json-out diagnosis.json -- torchrun train.py 2> log.txt
    """
    run_and_tell(
        command,
        kind="run",
        directory=directory,
        json_out=json_out,
        quiet=quiet,
        capture=not no_capture,
        on_hang=on_hang,
    )
