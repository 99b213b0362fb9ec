"""Words after `--` are a command, not arguments of the verb."""

from __future__ import annotations

import pytest
import typer
from typer.testing import CliRunner

from mgpu_doctor.cli.dashes import Dashed, after_dashes

app = typer.Typer()


@app.command(cls=Dashed)
def verb(context: typer.Context, job: str | None = None, word: str = typer.Argument("")) -> None:
    typer.echo(f"{job} {word!r} {after_dashes(context)}")


@pytest.mark.parametrize(
    ("typed", "seen"),
    [
        ([], "None '' None"),
        (["--job", "x", "w"], "x 'w' None"),
        (["--job", "x", "--", "torchrun", "--job", "y", "--", "z"],
         "x '' ('torchrun', '--job', 'y', '--', 'z')"),
        (["w", "--"], "None 'w' ()"),
    ],
    ids=["nothing", "no dashes", "a command", "no command"],
)  # fmt: skip
def test_what_follows_the_dashes_is_set_aside(typed: list[str], seen: str) -> None:
    assert CliRunner().invoke(app, typed).stdout.strip() == seen
