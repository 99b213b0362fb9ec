"""The manual page of `mgpu-doctor`, generated from the command line itself:

python -m mgpu_doctor.cli.man_page > mgpu-doctor.1
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator

import click

from mgpu_doctor import __version__
from mgpu_doctor.cli import FIRST_STEPS, app
from mgpu_doctor.cli.options import Argument

NAME = "mgpu-doctor"
VERBATIM = "\b"
"""Click's mark for a paragraph whose lines stay as they are."""
EXIT_CODES = (
    ("0", "Done; of diagnose: no finding at warning or worse."),
    ("1", "At least one finding at warning or worse, or something can be improved."),
    ("2", "Wrong usage."),
    ("3", "Nothing could be examined."),
    ("N", "Of run and train: the exit code of the job; 128 + the signal that ended it."),
)


def make_page() -> str:
    """The page in man(7)'s macros, ending in a newline."""
    context = click.Context(app, info_name=NAME, **app.context_settings)
    lines = [
        f'.TH MGPU\\-DOCTOR 1 "" "mgpu\\-doctor {_escape(__version__)}"',
        ".SH NAME",
        f"{_escape(NAME)} \\- {_escape((app.help or '').rstrip('.'))}",
        ".SH SYNOPSIS",
        f".B {_escape(NAME)}",
        "COMMAND [OPTIONS] [ARGUMENTS]",
        ".SH FIRST STEPS",
        *(line for command, text in FIRST_STEPS for line in _item(command, text)),
        ".SH COMMANDS",
        *(line for name in app.list_commands(context) for line in _command(context, app, name)),
        ".SH EXIT STATUS",
        *(line for code, text in EXIT_CODES for line in _item(code, text)),
    ]
    return "\n".join(lines) + "\n"


def _command(parent: click.Context, group: click.Group, name: str) -> Iterator[str]:
    """A verb, and after it the verbs below it."""
    command = group.get_command(parent, name)
    if command is None or command.hidden:
        return
    context = click.Context(command, info_name=name, parent=parent, **command.context_settings)
    pieces = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    yield f".SS {_escape(pieces)}"
    yield from _paragraphs(inspect.cleandoc(command.help or ""))
    for param in command.params:
        record = param.help_row if isinstance(param, Argument) else param.get_help_record(context)
        if record is not None:
            yield from _item(*record)
    if isinstance(command, click.Group):
        for below in command.list_commands(context):
            yield from _command(context, command, below)


def _paragraphs(text: str) -> Iterator[str]:
    for paragraph in text.split("\n\n"):
        yield ".PP"
        if paragraph.startswith(VERBATIM):
            yield from (".nf", *map(_line, paragraph.splitlines()[1:]), ".fi")
        else:
            yield _line(" ".join(paragraph.split()))


def _item(term: str, text: str) -> Iterator[str]:
    yield from (".TP", f".B {_escape(term)}", _line(" ".join(text.split())))


def _line(text: str) -> str:
    """A line of text that no macro begins."""
    escaped = _escape(text)
    return f"\\&{escaped}" if escaped.startswith((".", "'")) else escaped


def _escape(text: str) -> str:
    return text.replace("\\", "\\e").replace("-", "\\-").replace("…", "...")


if __name__ == "__main__":
    sys.stdout.write(make_page())
