"""`mgpu-doctor plan`: whether a training step will fit the GPU, before anything is launched."""

from __future__ import annotations

import sys

import click

from mgpu_doctor.cli.completers import complete_gpu, complete_model, complete_planned, offer
from mgpu_doctor.cli.options import Argument, Between, Verb
from mgpu_doctor.cli.terminal_output import (
    NOTHING_EXAMINED,
    display_of,
    exit_with,
    print_text,
    progress_line,
)

WILL_NOT_FIT = 1
MOST_SAMPLES, MOST_ACCUMULATE, MOST_RANKS = 1 << 24, 256, 1 << 20


@click.command(cls=Verb)
@click.argument(
    "name",
    cls=Argument,
    metavar="SUBJECT",
    shell_complete=complete_planned,
    help_text="What to plan: script.py:FUNCTION or module:FUNCTION (docs/plan.md), a built-in "
    "trainer (torch-ddp, tf-mirrored, …), or a model (gpt-nano, cnn-nano, gpt2-small, resnet50).",
)
@click.option(
    "--gpu",
    metavar="GPU",
    shell_complete=complete_gpu,
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
    shell_complete=offer("single", "ddp", "zero1", "fsdp", "mirrored"),
    help="single, ddp, zero1, fsdp, or mirrored (TensorFlow). By default that of the trainer, else "
    "single for one rank, and ddp or mirrored for several.",
)
@click.option(
    "--model",
    metavar="NAME",
    shell_complete=complete_model,
    help="Model of a built-in trainer.",
)
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
@click.option(
    "--precision",
    default="fp32",
    metavar="NAME",
    shell_complete=offer("fp32", "bf16"),
    help="fp32 or bf16 (autocast).",
)
@click.option(
    "--checkpointing",
    default="none",
    metavar="NAME",
    shell_complete=offer("none", "half", "full"),
    help="Activation checkpointing: none, half or full (of the blocks).",
)
@click.option(
    "--optimizer",
    default="adamw",
    metavar="NAME",
    shell_complete=offer("adamw", "adam", "sgd"),
    help="adamw, adam or sgd.",
)
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
    from mgpu_doctor.api.verb_requests import PlanOptions, plan_memory
    from mgpu_doctor.plan import plan_json, plan_text

    options = PlanOptions(
        name=name,
        gpu=gpu,
        ranks=ranks,
        strategy=strategy,
        model=model,
        batch=batch,
        accumulate=accumulate,
        precision=precision,
        checkpointing=checkpointing,
        optimizer=optimizer,
        limit=limit,
        fixes=fixes,
    )
    with progress_line() as report_progress:
        planned = plan_memory(options, report_progress)
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
