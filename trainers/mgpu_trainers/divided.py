"""Models that are divided among ranks: what each of them, and each number of ranks, allows.

Imports no framework.
"""

from collections.abc import Mapping

from mgpu_trainers.options import HEADS, UsageError, Value

TENSOR = ("torch-tp", "torch-tp-fsdp")


def check(trainer: str, ranks: int, values: Mapping[str, Value | None]) -> None:
    """Raises UsageError; `values` has all options of the trainer."""
    if trainer in TENSOR:
        _check_tensor(trainer, ranks, values)


def _check_tensor(trainer: str, ranks: int, values: Mapping[str, Value | None]) -> None:
    model = str(values["model"])
    if model not in HEADS:
        raise UsageError(
            f"{trainer} divides attention and MLPs, and {model} has none: take --model gpt-nano",
            "model",
        )
    tp = int(values["tp"] or 1) if "tp" in values else ranks
    by = "tp" if "tp" in values else "ranks"
    if HEADS[model] % tp:
        raise UsageError(
            f"{trainer} divides the {HEADS[model]} attention heads of {model}, so --{by} must "
            f"divide them evenly: {tp} does not",
            by,
        )
    if ranks % tp:
        raise UsageError(f"--tp {tp} does not divide {ranks} ranks into equal groups", "tp")
    if values["precision"] == "fp16":
        raise UsageError(
            f"{trainer} has no --precision fp16: ranks that hold different weights would skip "
            "different steps; take bf16",
            "precision",
        )
