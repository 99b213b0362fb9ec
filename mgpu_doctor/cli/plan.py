"""`mgpu-doctor plan`: whether a training step will fit the GPU, before anything is launched."""

from __future__ import annotations

import sys
from enum import Enum
from typing import TYPE_CHECKING, TypeVar

import click

from mgpu_doctor.cli.options import Argument, Between, Verb
from mgpu_doctor.cli.terminal_output import (
    NOTHING_EXAMINED,
    WRONG_USAGE,
    display_of,
    exit_with,
    print_text,
    progress_line,
)

if TYPE_CHECKING:
    from mgpu_doctor.analysis.memory.device_memory import Gpu
    from mgpu_doctor.analysis.memory.memory_plan import Plan, Settings
    from mgpu_doctor.plan.planned import Planned, PlanRequest
    from mgpu_doctor.plan.subject import Subject

Choice = TypeVar("Choice", bound=Enum)

WILL_NOT_FIT = 1
MOST_SAMPLES, MOST_ACCUMULATE, MOST_RANKS = 1 << 24, 256, 1 << 20


@click.command(cls=Verb)
@click.argument(
    "name",
    cls=Argument,
    metavar="SUBJECT",
    help_text="What to plan: script.py:FUNCTION or module:FUNCTION (docs/plan.md), a built-in "
    "trainer (torch-ddp, tf-mirrored, …), or a model (gpt-nano, cnn-nano, gpt2-small, resnet50).",
)
@click.option(
    "--gpu",
    metavar="GPU",
    help="The GPU: a model such as H100-80GB or A100, or a memory size such as 40GiB.",
)
@click.option(
    "--ranks",
    type=click.IntRange(1, MOST_RANKS),
    metavar="N",
    help="Number of ranks. By default 2, or 1 for a single process.",
)
@click.option(
    "--strategy",
    metavar="NAME",
    help="single, ddp, zero1, fsdp, or mirrored (TensorFlow). By default that of the trainer, else "
    "single for one rank, and ddp or mirrored for several.",
)
@click.option("--model", metavar="NAME", help="Model of a built-in trainer.")
@click.option(
    "--batch",
    type=click.IntRange(1, MOST_SAMPLES),
    metavar="N",
    help="Micro-batch size per rank, in samples. By default that of the subject.",
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
@click.option("--fixes", is_flag=True, help="List ways to save memory even if the step fits.")
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

    No GPU is needed: the step is traced without being computed. Exit code: 0 it fits, or no --gpu
    was given, 1 it does not fit, 2 wrong usage, 3 no plan could be made.

    \b
    Examples:
      mgpu-doctor plan gpt2-small --batch 16 --gpu A100-40GB
      mgpu-doctor plan torch-ddp --model resnet50 --batch 256 --ranks 8 --gpu H100
      mgpu-doctor plan train.py:plan --batch 32 --precision bf16 --gpu 24GiB
    """
    from mgpu_doctor.plan import plan_json, plan_text
    from mgpu_doctor.plan.planned import PlanRequest

    subject = _find_subject(name, model)
    samples = subject.batch if batch is None else batch
    settings = _make_settings(samples, accumulate, checkpointing, precision, optimizer)
    wanted = _make_plan(subject, settings, strategy, ranks)
    planned = _trace_and_plan(PlanRequest(subject, wanted, _find_gpu(gpu), limit, fixes))
    print_text(
        plan_json.render(planned)
        if as_json
        else plan_text.render(planned, **display_of(sys.stdout))
    )
    if planned.fits is None and planned.device is not None:
        exit_with(
            NOTHING_EXAMINED,
            "only a lower bound of the memory is known, so it is unknown whether the step fits.",
        )
    raise click.exceptions.Exit(WILL_NOT_FIT if planned.fits is False else 0)


def _trace_and_plan(request: PlanRequest) -> Planned:
    from mgpu_doctor.plan.planned import make_plan
    from mgpu_doctor.plan.step_tracer import CannotPlanError
    from mgpu_doctor.report.text import line

    try:
        with progress_line() as report_progress:
            return make_plan(request, report_progress)
    except CannotPlanError as error:
        exit_with(NOTHING_EXAMINED, line(str(error)))


def _find_subject(name: str, model: str | None) -> Subject:
    from mgpu_doctor.plan.subject import SubjectError, find_subject

    try:
        return find_subject(name, model)
    except SubjectError as error:
        exit_with(WRONG_USAGE, str(error))


def _find_gpu(name: str | None) -> Gpu | None:
    from mgpu_doctor.analysis.memory.device_memory import GPUS, find_gpu

    planned = None if name is None else find_gpu(name)
    if name is not None and planned is None:
        exit_with(WRONG_USAGE, f"--gpu must be a size such as 40GiB, or one of {', '.join(GPUS)}.")
    return planned


def _make_settings(
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
        _parse_choice(Checkpointing, "checkpointing", checkpointing),
        _parse_choice(Precision, "precision", precision),
        _parse_choice(Optimizer, "optimizer", optimizer),
    )


def _make_plan(
    subject: Subject, settings: Settings, strategy: str | None, ranks: int | None
) -> Plan:
    from mgpu_doctor.analysis.memory.memory_plan import Plan, Strategy

    chosen = Strategy.DDP if ranks is not None and ranks > 1 else Strategy.SINGLE
    if strategy is not None:
        chosen = _parse_choice(Strategy, "strategy", strategy)
        if subject.strategy not in (None, chosen):
            exit_with(
                WRONG_USAGE, f"the trainer {subject.name} has a fixed strategy: remove --strategy."
            )
    elif subject.strategy is not None:
        chosen = subject.strategy
        if chosen is Strategy.SINGLE and ranks not in (None, 1):
            exit_with(WRONG_USAGE, f"{subject.name} has a single process: --ranks can only be 1.")
    number = ranks or (1 if chosen is Strategy.SINGLE else 2)
    return Plan(settings, chosen, number)


def _parse_choice(kind: type[Choice], option: str, value: str) -> Choice:
    try:
        return kind(value)
    except ValueError:
        choices = ", ".join(choice.value for choice in kind)
        exit_with(WRONG_USAGE, f"--{option} must be one of {choices}, not {value}.")
