"""`mgpu-doctor plan`: will it fit, said before anything is launched."""

from __future__ import annotations

import sys
from enum import Enum
from typing import TYPE_CHECKING, TypeVar

import click

from mgpu_doctor.cli.options import Argument, Between, Verb
from mgpu_doctor.cli.terminal_output import NOTHING_EXAMINED, colour, leave, put, unicode, width

if TYPE_CHECKING:
    from mgpu_doctor.analysis.memory.device_memory import Gpu
    from mgpu_doctor.analysis.memory.memory_plan import Plan, Settings
    from mgpu_doctor.plan.planned import Planned, PlanRequest
    from mgpu_doctor.plan.subject import Subject

Choice = TypeVar("Choice", bound=Enum)

WILL_NOT_FIT = 1
WRONG_USAGE = 2
MOST_SAMPLES, MOST_ACCUMULATE, MOST_RANKS = 1 << 24, 256, 1 << 20


@click.command(cls=Verb)
@click.argument(
    "name",
    cls=Argument,
    metavar="SUBJECT",
    told="script.py:FUNCTION or module:FUNCTION (docs/plan.md), a built-in trainer (torch-ddp, "
    "tf-mirrored, …), or gpt-nano, cnn-nano, gpt2-small, resnet50.",
)
@click.option(
    "--gpu",
    metavar="GPU",
    help="GPU to fit: a model such as H100-80GB or A100, or a size such as 40GiB.",
)
@click.option(
    "--ranks",
    type=click.IntRange(1, MOST_RANKS),
    metavar="N",
    help="Number of ranks; by default 2, or 1 for a single process.",
)
@click.option(
    "--strategy",
    metavar="NAME",
    help="single, ddp, zero1, fsdp, or mirrored of TensorFlow; none: the trainer's, else ddp or "
    "mirrored if there are ranks.",
)
@click.option("--model", metavar="NAME", help="Model of a built-in trainer.")
@click.option(
    "--batch",
    type=click.IntRange(1, MOST_SAMPLES),
    metavar="N",
    help="Micro-batch size per rank, in samples.",
)
@click.option(
    "--accumulate",
    type=click.IntRange(1, MOST_ACCUMULATE),
    default=1,
    metavar="N",
    help="Gradient accumulation: micro-batches per optimizer step.",
)
@click.option("--precision", default="fp32", metavar="NAME", help="fp32 or bf16 (autocast).")
@click.option(
    "--checkpointing",
    default="none",
    metavar="NAME",
    help="Activation checkpointing: none, half or full (of the blocks).",
)
@click.option("--optimizer", default="adamw", metavar="NAME", help="adamw, adam or sgd.")
@click.option(
    "--limit",
    type=Between(1, 86_400),
    default=120,
    metavar="SECONDS",
    help="Time limit for tracing the step.",
)
@click.option("--fixes", is_flag=True, help="List what would help even if it fits.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object (docs/plan.schema.json)."
)
def plan(
    name: str,
    *,
    gpu: str | None,
    ranks: int | None,
    strategy: str | None,
    model: str | None,
    batch: int | None,
    accumulate: int,
    precision: str,
    checkpointing: str,
    optimizer: str,
    limit: float,
    fixes: bool,
    as_json: bool,
) -> None:
    """Predict whether a training step fits a GPU, what uses the memory, and what would help.

    No GPU is needed: the step is traced without computing it. Exit code: 0 it fits (or no --gpu),
    1 it does not fit, 2 wrong usage, 3 nothing could be examined.

    \b
    Examples:
      mgpu-doctor plan gpt2-small --batch 16 --gpu A100-40GB
      mgpu-doctor plan torch-ddp --model resnet50 --batch 256 --ranks 8 --gpu H100
      mgpu-doctor plan train.py:plan --batch 32 --precision bf16 --gpu 24GiB
    """
    from mgpu_doctor.plan import plan_json, plan_text
    from mgpu_doctor.plan.planned import PlanRequest

    subject = _subject(name, model)
    samples = subject.batch if batch is None else batch
    settings = _settings(samples, accumulate, checkpointing, precision, optimizer)
    wanted = _plan(subject, settings, strategy, ranks)
    found = _planned(PlanRequest(subject, wanted, _gpu(gpu), limit, fixes))
    out = sys.stdout
    put(
        plan_json.render(found)
        if as_json
        else plan_text.render(found, width=width(out), colour=colour(out), unicode=unicode(out))
    )
    if found.fits is None and found.device is not None:
        leave("only a lower bound is known, so whether it fits is unknown.", NOTHING_EXAMINED)
    raise click.exceptions.Exit(WILL_NOT_FIT if found.fits is False else 0)


def _planned(asked: PlanRequest) -> Planned:
    from mgpu_doctor.cli.terminal_output import telling
    from mgpu_doctor.plan.planned import make_plan
    from mgpu_doctor.plan.step_tracer import CannotPlanError
    from mgpu_doctor.report.text import line

    try:
        with telling() as tell:
            return make_plan(asked, tell)
    except CannotPlanError as error:
        leave(line(str(error)), NOTHING_EXAMINED)


def _subject(name: str, model: str | None) -> Subject:
    from mgpu_doctor.plan.subject import SubjectError, find_subject

    try:
        return find_subject(name, model)
    except SubjectError as error:
        leave(str(error), WRONG_USAGE)


def _gpu(name: str | None) -> Gpu | None:
    from mgpu_doctor.analysis.memory.device_memory import GPUS, find_gpu

    found = None if name is None else find_gpu(name)
    if name is not None and found is None:
        leave(f"--gpu must be a size such as 40GiB, or one of {', '.join(GPUS)}.", WRONG_USAGE)
    return found


def _settings(
    batch: int, accumulate: int, checkpointing: str, precision: str, optimizer: str
) -> Settings:
    from mgpu_doctor.analysis.memory.memory_plan import (
        Checkpointing,
        Optimizer,
        Precision,
        Settings,
    )

    return Settings(
        batch,
        accumulate,
        _one_of(Checkpointing, "checkpointing", checkpointing),
        _one_of(Precision, "precision", precision),
        _one_of(Optimizer, "optimizer", optimizer),
    )


def _plan(subject: Subject, settings: Settings, strategy: str | None, ranks: int | None) -> Plan:
    from mgpu_doctor.analysis.memory.memory_plan import Plan, Strategy

    chosen = Strategy.DDP if ranks is not None and ranks > 1 else Strategy.SINGLE
    if strategy is not None:
        chosen = _one_of(Strategy, "strategy", strategy)
        if subject.strategy not in (None, chosen):
            leave(f"{subject.name} is a trainer: leave --strategy out.", WRONG_USAGE)
    elif subject.strategy is not None:
        chosen = subject.strategy
        if chosen is Strategy.SINGLE and ranks not in (None, 1):
            leave(f"{subject.name} is one process: --ranks can only be 1.", WRONG_USAGE)
    number = ranks or (1 if chosen is Strategy.SINGLE else 2)
    return Plan(settings, chosen, number)


def _one_of(kind: type[Choice], option: str, given: str) -> Choice:
    try:
        return kind(given)
    except ValueError:
        known = ", ".join(each.value for each in kind)
        leave(f"--{option} must be one of {known}, not {given}.", WRONG_USAGE)
