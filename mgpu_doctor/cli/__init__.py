"""The command line: one small file a verb; each parses, calls and prints."""

from __future__ import annotations

import importlib
import sys

import typer

VERBS = (
    "top",
    "run",
    "train",
    "diagnose",
    "report",
    "compare",
    "export",
    "explain",
    "plan",
    "runs",
    "check",
)

app = typer.Typer(
    name="mgpu-doctor",
    help="Which rank, why, the evidence, the fix and what it gains: for multi-GPU training.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # plain help: four times quicker to print than the decorated one
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def version(
    show: bool = typer.Option(False, "--version", help="Print the version and exit."),
) -> None:
    if show:
        from mgpu_doctor import __version__

        typer.echo(f"mgpu-doctor {__version__}")
        raise typer.Exit


def main() -> None:
    """Entry point of the `mgpu-doctor` command: loads the verb that is asked for, or all."""
    asked = sys.argv[1:2]
    for verb in asked if asked and asked[0] in VERBS else VERBS:
        importlib.import_module(f"mgpu_doctor.cli.{verb}")
    app()
