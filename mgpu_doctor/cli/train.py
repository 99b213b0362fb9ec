"""`mgpu-doctor train`: a built-in trainer, under observation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from mgpu_doctor.cli import listed
from mgpu_doctor.cli.observed import DIRECTORY, JSON_OUT, QUIET, refuse, run_and_tell
from mgpu_doctor.cli.sweep import SWEEP, run_sweep
from mgpu_doctor.cli.verb import Argument, Verb


class _Train(Verb):
    """`train NAME --help` is about that trainer."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--help" in args and (told := listed.of(args[0])) is not None:
            click.echo(told)
            ctx.exit()
        return super().parse_args(ctx, args)


@click.command(
    cls=_Train, context_settings={"ignore_unknown_options": True, "allow_extra_args": True}
)
@click.argument(
    "name",
    cls=Argument,
    required=False,
    metavar="[NAME]",
    told="Which trainer; --list shows them.",
)
@click.option("--list", "listing", is_flag=True, help="List the trainers and their options.")
@click.option(
    "--ranks",
    type=int,
    metavar="N",
    help="Processes that train together; 2 where the trainer takes several.",
)
@SWEEP
@DIRECTORY
@JSON_OUT
@QUIET
@click.pass_context
def train(
    context: click.Context,
    name: str | None,
    *,
    listing: bool,
    ranks: int | None,
    sweep: tuple[str, ...],
    directory: Path | None,
    json_out: Path | None,
    quiet: bool,
) -> None:
    """Run a built-in trainer under observation, if wanted with a fault planted on purpose.

    Options that are not listed here are the trainer's own (--steps, --fault, …): see --list, or
    NAME --help.

    \b
    Examples:
      mgpu-doctor train --list
      mgpu-doctor train torch-ddp --ranks 4 --steps 200
      mgpu-doctor train torch-fsdp --model cnn-nano --precision bf16
      mgpu-doctor train tf-mirrored --replicas 2
      mgpu-doctor train torch-ddp --ranks 4 --fault slow:rank=2,phase=forward,ms=20
      mgpu-doctor train torch-ddp --sweep ranks=1,2,4
    """
    from mgpu_trainers import catalogue

    if listing:
        click.echo(listed.everything())
        return
    if sweep:
        named = name is None or not name.startswith("-")  # else it is the first option
        run_sweep(
            name if named else None,
            sweep,
            ranks=ranks,
            options=_options(context.args if named else [str(name), *context.args]),
            directory=directory,
            json_out=json_out,
            quiet=quiet,
        )
    if name is None:
        refuse("which trainer? `mgpu-doctor train --list` shows them.")
    if name.startswith("-"):
        refuse("the trainer's name comes first, as in `mgpu-doctor train torch-ddp --steps 100`.")
    try:
        trainer = catalogue.find(name)
        command = catalogue.command(trainer, ranks, _options(context.args))
    except catalogue.UsageError as error:
        refuse(f"{str(error).rstrip('.')}.")
    if why := catalogue.missing(trainer):
        refuse(f"{name} {why}.")
    run_and_tell(
        command, kind="train", name=name, directory=directory, json_out=json_out, quiet=quiet
    )


def _options(arguments: Sequence[str]) -> dict[str, list[str]]:
    """`--key value` and `--key=value` as a mapping; a key may come several times."""
    options: dict[str, list[str]] = {}
    rest = iter(arguments)
    for argument in rest:
        if not argument.startswith("--"):
            refuse(f"{argument!r} is not understood; a trainer's options look like --steps 100.")
        key, given, value = argument[2:].partition("=")
        if not given:
            value = next(rest, "")
            if not value or value.startswith("--"):
                refuse(f"--{key} needs a value.")
        options.setdefault(key, []).append(value)
    return options
