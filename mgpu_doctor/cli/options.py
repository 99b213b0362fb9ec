"""Additions to Click: arguments with help texts, words after `--`, and checked numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

FILE = click.Path(path_type=Path)
_AFTER_DASHES = "mgpu_doctor.cli.after_dashes"


class Argument(click.Argument):
    """An argument with a text for the help."""

    def __init__(self, param_decls: Sequence[str], *, help_text: str, **options: Any) -> None:
        super().__init__(param_decls, **options)
        self._help_text = help_text

    @property
    def help_row(self) -> tuple[str, str]:
        """Its name and text in the help."""
        return self.human_readable_name.strip("[]"), (
            f"{self._help_text}  [required]" if self.required else self._help_text
        )


class Verb(click.Command):
    """A command whose help lists the arguments before the options."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [param.help_row for param in self.params if isinstance(param, Argument)]
        if rows:
            with formatter.section("Arguments"):
                formatter.write_dl(rows)
        super().format_options(ctx, formatter)


class Suggesting(click.Group):
    """A group of commands that suggests similar ones for an unknown one."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            from mgpu_doctor.formatting import suggest

            hint = suggest(args[0], self.list_commands(ctx))
            if not hint:
                raise
            raise click.UsageError(f"{error.message} {hint}", ctx) from None


class Dashed(Verb):
    """A verb used as `VERB [WORDS] -- COMMAND…`: the words after `--` are kept apart
    (`words_after_dashes`), and those before it are parsed as usual."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            place = args.index("--")
            ctx.meta[_AFTER_DASHES] = tuple(args[place + 1 :])
            args = args[:place]
        return super().parse_args(ctx, args)


def words_after_dashes(context: click.Context) -> tuple[str, ...] | None:
    """The words after `--`; None without `--`."""
    command = context.meta.get(_AFTER_DASHES)
    return command if isinstance(command, tuple) else None


class Between(click.FloatRange):
    """A number within bounds; `nan`, which no bound excludes, is refused."""

    name = "number"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        number = float(super().convert(value, param, ctx))
        if math.isnan(number):
            self.fail(f"{value} is not a number.", param, ctx)
        return number
