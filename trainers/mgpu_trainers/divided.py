"""Models that are divided among ranks: what each of them, and each number of ranks, allows.

Imports no framework.
"""

from collections.abc import Mapping

from mgpu_trainers.options import BATCH, BLOCKS, HEADS, UsageError, Value

TENSOR = ("torch-tp", "torch-tp-fsdp")


def check(trainer: str, ranks: int, values: Mapping[str, Value | None]) -> None:
    """Raises UsageError; `values` has all options of the trainer."""
    if trainer in TENSOR:
        _check_tensor(trainer, ranks, values)
    if trainer == "torch-pp":
        _check_pipeline(ranks, values)


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


def _check_pipeline(ranks: int, values: Mapping[str, Value | None]) -> None:
    order, model, parts = (
        values["schedule"],
        str(values["model"]),
        int(values["micro-batches"] or 1),
    )
    batch = int(values["global-batch"] or values["batch"] or BATCH[model])
    stages = ranks * (2 if order in ("interleaved", "zbv") else 1)
    rounds = max(1, parts // ranks)
    wrong = {
        "torch-pp needs 2 ranks or more": ("ranks", ranks == 1),
        f"--schedule {order} cuts the model into {stages} stages on {ranks} ranks, and {model} has "
        f"{BLOCKS[model]} blocks to divide": ("ranks", stages > BLOCKS[model]),
        f"a batch of {batch} samples cannot be divided into {parts} equal micro-batches": (
            "micro-batches",
            batch % parts,
        ),
        f"--schedule 1f1b needs as many micro-batches as there are ranks, or more: {parts} are too "
        "few": ("micro-batches", order == "1f1b" and parts < ranks),
        f"--schedule interleaved takes micro-batches in {rounds} equal rounds on {ranks} ranks, "
        f"and {parts} cannot be divided so": (
            "micro-batches",
            order == "interleaved" and parts % rounds,
        ),
        "torch-pp has no --accumulate: a batch already goes through in --micro-batches, whose "
        "gradients are added up": ("accumulate", values["accumulate"] != 1),
        "torch-pp computes in fp32 only": ("precision", values["precision"] != "fp32"),
        "--schedule zbv divides backward in two, and --checkpointing would compute again in both": (
            "checkpointing",
            order == "zbv" and values["checkpointing"] != "none",
        ),
    }
    for sentence, (option, applies) in wrong.items():
        if applies:
            raise UsageError(sentence, option)
