"""Options that make no sense side by side. Imports no framework."""

from collections.abc import Mapping
from pathlib import Path

from mgpu_trainers import amount, divided, kept, schedule
from mgpu_trainers.options import AUTO, UsageError, Value

Values = Mapping[str, Value | None]

ALONE = ("torch-localsgd", "torch-diloco")
"""Trainers whose ranks learn by themselves for some steps."""


def check(trainer: str, ranks: int, values: Values) -> None:
    """Raises UsageError for the first of them; `values` has all options of the trainer."""
    divided.check(trainer, ranks, values)
    if trainer == "torch-ps":
        _check_served(ranks, values)
    tp = values.get("tp")
    replicas = schedule.replicas(trainer, ranks, int(tp) if tp else None)
    who = "ranks" if replicas == ranks else "groups"
    who = "replicas" if "replicas" in values else who
    _check_batches(f"{replicas} {who}", replicas, values)
    if trainer.startswith(("torch-", "ray-")):  # tf.data repeats what is too little
        _check_amount(replicas, values)
    _check_saving(values)
    _check_loading(values)
    _check_compiling(values)
    if values.get("precision") == "fp16" and trainer in ALONE:
        raise UsageError(
            f"{trainer} has no --precision fp16: each rank would scale, and skip, steps of its "
            "own; take bf16",
            "precision",
        )


def _check_served(ranks: int, values: Values) -> None:
    if ranks == 1:
        raise UsageError("torch-ps needs 2 ranks or more: a server and a worker", "ranks")
    if values["lr-scaling"] != "none":
        raise UsageError(
            "torch-ps learns from one worker's batch at a time, however many there are: "
            "--lr-scaling can only be none",
            "lr-scaling",
        )


def _check_loading(values: Values) -> None:
    if values.get("prefetch") is not None and not values.get("workers"):
        raise UsageError("--prefetch needs somebody who fetches: --workers 1 or more", "prefetch")


def _check_compiling(values: Values) -> None:
    if values.get("compile") != "on":
        return
    if values["batch"] == AUTO:
        raise UsageError(
            "--batch auto tries what the model takes as it is, and --compile changes that: give a "
            "number",
            "batch",
        )
    if values["checkpointing"] == "selective":
        raise UsageError(
            "--checkpointing selective chooses among operations, of which --compile leaves none: "
            "take full",
            "checkpointing",
        )


def _check_batches(sharing: str, replicas: int, values: Values) -> None:
    whole = values.get("global-batch")
    if whole is None:
        return
    if values["batch"] is not None:
        raise UsageError("give either --batch or --global-batch", "global-batch")
    parts = replicas * int(values["accumulate"] or 1)
    if int(whole) % parts:
        raise UsageError(
            f"--global-batch {whole} cannot be divided into {parts} equal batches "
            f"({sharing} × --accumulate {values['accumulate']})",
            "global-batch",
        )


def _check_amount(replicas: int, values: Values) -> None:
    option = "batch" if values["global-batch"] is None else "global-batch"
    given, model = values[option], str(values["model"])
    if given is None or given == AUTO:
        return
    parts = replicas * int(values["accumulate"] or 1) if option == "global-batch" else 1
    size, have = int(given) // parts, amount.samples(model)
    if size * replicas > have:
        several = f"{replicas} × " if replicas > 1 else ""
        raise UsageError(
            f"{several}{size} samples at once are more than the {have} that {model} is trained on",
            option,
        )


def _check_saving(values: Values) -> None:
    if values["save-every"] is not None and not values["save-to"]:
        raise UsageError("--save-every needs a folder: --save-to FOLDER", "save-every")
    if values["save-to"]:
        kept.check(Path(str(values["save-to"])))
