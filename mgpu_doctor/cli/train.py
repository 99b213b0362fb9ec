"""`mgpu-doctor train`: a built-in trainer, under observation; and the list of trainers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mgpu_doctor.cli.observed import DIRECTORY, JSON_OUT, QUIET, refuse, run_and_tell
from mgpu_doctor.cli.options import Argument, Verb
from mgpu_doctor.cli.sweep import SWEEP, run_sweep

if TYPE_CHECKING:
    from mgpu_trainers.catalogue import Option, Trainer


def everything() -> str:
    """All trainers, the options of any of them, and the faults."""
    from mgpu_trainers.catalogue import TRAINERS

    lines = [f"{trainer.name:<16}{trainer.summary}" for trainer in TRAINERS]
    lines.append("\nOptions (without names of trainers: of all):")
    for option in dict.fromkeys(option for trainer in TRAINERS for option in trainer.options):
        lines.append(f"  --{option.name:<14}{_told(option)}{_takers(option, TRAINERS)}")
    lines.append("\nFaults (--fault KIND:KEY=VALUE,…):")
    lines += [f"  {kind:<14}{keys}" for kind, keys in _faults()]
    return "\n".join(lines)


def of(name: str) -> str | None:
    """One trainer with its own options; None for a name that is none."""
    from mgpu_trainers import catalogue

    trainer = next((one for one in catalogue.TRAINERS if one.name == name), None)
    if trainer is None:
        return None
    several = [trainer.ranks] if trainer.launcher != "python" else []
    page = click.HelpFormatter()
    page.write_usage(f"mgpu-doctor train {name}", "[OPTIONS]")
    page.write_paragraph()
    page.write_text(trainer.summary)
    with page.section("Options"):
        page.write_dl([(f"--{one.name}", _told(one)) for one in (*several, *trainer.options)])
    with page.section("Faults (--fault KIND:KEY=VALUE,…)"):
        page.write_dl(_faults())
    page.write_paragraph()
    page.write_text("`mgpu-doctor train --help` tells of those that all trainers take: --sweep, …")
    return page.getvalue().rstrip("\n")


def _told(option: Option) -> str:
    default = "" if option.default is None else f" (default {option.default})"
    choices = f": {', '.join(option.choices)}" if option.choices else ""
    return f"{option.help}{choices}{default}"


def _takers(option: Option, trainers: Sequence[Trainer]) -> str:
    takers = [trainer.name for trainer in trainers if option in trainer.options]
    others = [one.name for one in trainers if option not in one.options]
    if not others:
        return ""
    if takers == [one.name for one in trainers if one.framework == "torch"]:
        return " [all of PyTorch]"
    if len(others) < len(takers) / 2:
        return f" [not {', '.join(others)}]"
    return f" [{', '.join(takers)}]"


def _faults() -> list[tuple[str, str]]:
    from mgpu_trainers import catalogue

    return [(kind, ", ".join(keys)) for kind, keys in catalogue.fault_keys().items()]


class _Train(Verb):
    """`train NAME --help` is about that trainer."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--help" in args and (told := of(args[0])) is not None:
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
    help="Number of ranks; by default 2 if the trainer supports several.",
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
    """Run a built-in trainer under observation, optionally with an injected fault.

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
        click.echo(everything())
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
