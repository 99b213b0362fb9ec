"""What Click lacks: arguments with help texts, words after `--`, and checked numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

FILE = click.Path(path_type=Path)
_AFTER_DASHES = "mgpu_doctor.cli.after_dashes"


class Argument(click.Argument):
    """`told`: its line in the help."""

    def __init__(self, param_decls: Sequence[str], *, told: str, **more: Any) -> None:
        super().__init__(param_decls, **more)
        self._told = told

    @property
    def row(self) -> tuple[str, str]:
        return self.human_readable_name.strip("[]"), (
            f"{self._told}  [required]" if self.required else self._told
        )


class Verb(click.Command):
    """Explains its arguments before its options."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [param.row for param in self.params if isinstance(param, Argument)]
        if rows:
            with formatter.section("Arguments"):
                formatter.write_dl(rows)
        super().format_options(ctx, formatter)


class Dashed(Verb):
    """`VERB [WORDS] -- COMMAND…` for a verb whose words before the dashes mean something else: sets
    aside what follows `--`; everything before it is parsed as ever."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            place = args.index("--")
            ctx.meta[_AFTER_DASHES] = tuple(args[place + 1 :])
            args = args[:place]
        return super().parse_args(ctx, args)


def after_dashes(context: click.Context) -> tuple[str, ...] | None:
    """The words after `--`; None: there are no dashes."""
    found = context.meta.get(_AFTER_DASHES)
    return found if isinstance(found, tuple) else None


class Between(click.FloatRange):
    """`nan`, which is neither too small nor too large, is none of them."""

    name = "number"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        number = float(super().convert(value, param, ctx))
        if math.isnan(number):
            self.fail(f"{value} is no number.", param, ctx)
        return number
