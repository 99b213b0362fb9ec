"""Where a verb's words go: what the stream can show, and what if nobody reads any more."""

from __future__ import annotations

import os
import shutil
import sys
from typing import NoReturn, TextIO

import click

NOTHING_EXAMINED = 3


def width(stream: TextIO) -> int:
    """Columns of the terminal behind `stream`, else `$COLUMNS`, else 80."""
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError):
        return shutil.get_terminal_size().columns


def colour(stream: TextIO) -> bool:
    """On a terminal that has colours, unless `$NO_COLOR` says no (no-color.org)."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return not plain and stream.isatty()


def unicode(stream: TextIO) -> bool:
    """Whether the stream takes every character."""
    return (stream.encoding or "ascii").lower().replace("-", "").startswith("utf")


def put(words: str) -> None:
    """Write to standard output. A reader that has gone away (`| head`) is no error."""
    try:
        sys.stdout.write(words)
        sys.stdout.flush()
    except BrokenPipeError:
        # What is still buffered must not be flushed into the closed pipe at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def leave(sentence: str, code: int) -> NoReturn:
    """Say on standard error what is wrong and what to do, and exit."""
    click.echo(f"mgpu-doctor: {sentence}", err=True)
    raise click.exceptions.Exit(code)
