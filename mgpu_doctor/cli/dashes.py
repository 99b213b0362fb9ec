"""`VERB [WORDS] -- COMMAND…` for a verb whose words before the dashes mean something else."""

from __future__ import annotations

import typer
from typer.core import TyperCommand

_KEY = "mgpu_doctor.cli.dashes"


class Dashed(TyperCommand):
    """Sets aside what follows `--`; everything before it is parsed as ever."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        if "--" in args:
            place = args.index("--")
            ctx.meta[_KEY] = tuple(args[place + 1 :])
            args = args[:place]
        return super().parse_args(ctx, args)


def after_dashes(context: typer.Context) -> tuple[str, ...] | None:
    """The words after `--`; None: there are no dashes."""
    found = context.meta.get(_KEY)
    return found if isinstance(found, tuple) else None
