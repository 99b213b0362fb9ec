"""The command line: one small file a verb; each parses, calls and prints."""

from __future__ import annotations

import typer

app = typer.Typer(
    name="mgpu-doctor",
    help="Which rank, why, the evidence, the fix and what it gains: for multi-GPU training.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # plain help: four times quicker to print than the decorated one
    pretty_exceptions_enable=False,
)


def main() -> None:
    """Entry point of the `mgpu-doctor` command."""
    app()
