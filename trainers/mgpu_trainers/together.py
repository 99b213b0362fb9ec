"""Options that make no sense side by side. Imports no framework."""

from collections.abc import Mapping

from mgpu_trainers import divided, schedule
from mgpu_trainers.options import UsageError, Value

Values = Mapping[str, Value | None]


def check(trainer: str, ranks: int, values: Values) -> None:
    """Raises UsageError for the first of them; `values` has all options of the trainer."""
    divided.check(trainer, ranks, values)
    tp = values.get("tp")
    replicas = schedule.replicas(trainer, ranks, int(tp) if tp else None)
    _check_batches(f"{replicas} {'ranks' if replicas == ranks else 'groups'}", replicas, values)
    _check_saving(values)
    if values.get("precision") == "fp16" and trainer == "torch-localsgd":
        raise UsageError(
            "torch-localsgd has no --precision fp16: each rank would scale, and skip, steps of its "
            "own; take bf16",
            "precision",
        )


def _check_batches(sharing: str, replicas: int, values: Values) -> None:
    whole = values["global-batch"]
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


def _check_saving(values: Values) -> None:
    if values["save-every"] is not None and not values["save-to"]:
        raise UsageError("--save-every needs a folder: --save-to FOLDER", "save-every")
