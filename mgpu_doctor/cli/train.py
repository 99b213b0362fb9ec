"""`mgpu-doctor train`: runs a built-in trainer under observation, or lists the trainers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mgpu_doctor.cli.completers import complete_trainer, complete_trainer_option
from mgpu_doctor.cli.observed import DIRECTORY, JSON_OUT, QUIET, refuse, run_observed
from mgpu_doctor.cli.options import Argument, Verb
from mgpu_doctor.cli.sweep import SWEEP, run_sweep

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem
    from mgpu_trainers.catalogue import Option, Trainer


def list_trainers() -> str:
    """All trainers, their options and the faults, as text."""
    from mgpu_trainers.catalogue import TRAINERS

    lines = [f"{trainer.name:<16}{trainer.summary}" for trainer in TRAINERS]
    lines.append("\nOptions (of all trainers unless some are named):")
    for option in dict.fromkeys(option for trainer in TRAINERS for option in trainer.options):
        lines.append(
            f"  --{option.name:<14}{_describe(option)}{_describe_takers(option, TRAINERS)}"
        )
    lines.append("\nFaults (--fault KIND:KEY=VALUE,…):")
    lines += [f"  {kind:<14}{keys}" for kind, keys in _list_faults()]
    return "\n".join(lines)


def render_trainer_help(name: str) -> str | None:
    """The help page of a trainer; None if there is no trainer of this name."""
    from mgpu_trainers import catalogue

    trainer = next((candidate for candidate in catalogue.TRAINERS if candidate.name == name), None)
    if trainer is None:
        return None
    ranks = [trainer.ranks] if trainer.launcher != "python" else []
    page = click.HelpFormatter()
    page.write_usage(f"mgpu-doctor train {name}", "[OPTIONS]")
    page.write_paragraph()
    page.write_text(trainer.summary)
    with page.section("Options"):
        page.write_dl(
            [(f"--{option.name}", _describe(option)) for option in (*ranks, *trainer.options)]
        )
    with page.section("Faults (--fault KIND:KEY=VALUE,…)"):
        page.write_dl(_list_faults())
    page.write_paragraph()
    page.write_text(
        "`mgpu-doctor train --help` lists the options of all trainers, such as --sweep."
    )
    return page.getvalue().rstrip("\n")


def _describe(option: Option) -> str:
    default = "" if option.default is None else f" (default {option.default})"
    choices = f": {', '.join(option.choices)}" if option.choices else ""
    return f"{option.help}{choices}{default}"


def _describe_takers(option: Option, trainers: Sequence[Trainer]) -> str:
    takers = [trainer.name for trainer in trainers if option in trainer.options]
    non_takers = [trainer.name for trainer in trainers if option not in trainer.options]
    if not non_takers:
        return ""
    if takers == [trainer.name for trainer in trainers if trainer.framework == "torch"]:
        return " [all PyTorch trainers]"
    if len(non_takers) < len(takers) / 2:
        return f" [not {', '.join(non_takers)}]"
    return f" [{', '.join(takers)}]"


def _list_faults() -> list[tuple[str, str]]:
    from mgpu_trainers import catalogue

    return [(kind, ", ".join(keys)) for kind, keys in catalogue.fault_keys().items()]


class _Train(Verb):
    """`train`, with a help page per trainer: `train NAME --help`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--help" in args and (page := render_trainer_help(args[0])) is not None:
            click.echo(page)
            ctx.exit()
        return super().parse_args(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        words = [str(ctx.params.get("name") or ""), *ctx.args]
        offered = complete_trainer_option(words, incomplete)
        if len(words) > 1 and not incomplete.startswith("-"):
            return offered  # the value of an option of the trainer
        return [*super().shell_complete(ctx, incomplete), *offered]


@click.command(
    cls=_Train, context_settings={"ignore_unknown_options": True, "allow_extra_args": True}
)
@click.argument(
    "name",
    cls=Argument,
    required=False,
    metavar="[NAME]",
    shell_complete=complete_trainer,
    help_text="Name of the trainer; --list lists all.",
)
@click.option("--list", "listing", is_flag=True, help="List the trainers and their options.")
@click.option(
    "--ranks",
    type=int,
    metavar="N",
    help="Number of ranks. By default 2 if the trainer supports several.",
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

    Each trainer has more options, such as --steps and --fault: see `train NAME --help`, or --list
    for those of all trainers.

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
        click.echo(list_trainers())
        return
    if sweep:
        named = name is None or not name.startswith("-")  # else it is the first option
        run_sweep(
            name if named else None,
            sweep,
            ranks=ranks,
            options=_parse_options(context.args if named else [str(name), *context.args]),
            directory=directory,
            json_out=json_out,
            quiet=quiet,
        )
    if name is None:
        refuse("which trainer? `mgpu-doctor train --list` lists them.")
    if name.startswith("-"):
        refuse("the trainer's name comes first, as in `mgpu-doctor train torch-ddp --steps 100`.")
    try:
        trainer = catalogue.find(name)
        options = _parse_options(context.args)
        command = catalogue.command(trainer, ranks, options)
    except catalogue.UsageError as error:
        message = str(error)
        refuse(message if message.endswith("?") else f"{message.rstrip('.')}.")
    if why := catalogue.missing(trainer, options):
        refuse(f"{name} {why}.")
    run_observed(
        command, kind="train", name=name, directory=directory, json_out=json_out, quiet=quiet
    )


def _parse_options(arguments: Sequence[str]) -> dict[str, list[str]]:
    """The values of `--key value` and `--key=value` by key; a key may occur several times."""
    options: dict[str, list[str]] = {}
    rest = iter(arguments)
    for argument in rest:
        if not argument.startswith("--"):
            refuse(f"unexpected argument {argument!r}: options of a trainer look like --steps 100.")
        key, separator, value = argument[2:].partition("=")
        if not separator:
            value = next(rest, "")
            if not value or value.startswith("--"):
                refuse(f"--{key} needs a value.")
        options.setdefault(key, []).append(value)
    return options
