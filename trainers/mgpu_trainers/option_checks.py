"""Options that make no sense side by side, or not with this trainer, model or number of ranks.

Called by the catalogue before anything is started. Every check raises UsageError with the option
to change. Imports no framework.
"""

import os
import zipfile
from pathlib import Path

from mgpu_trainers.capabilities import Capability, Framework, UsageError, Values
from mgpu_trainers.datasets import count_samples
from mgpu_trainers.options import AUTO, BATCH, BLOCKS, HEADS
from mgpu_trainers.trainer import Trainer

CHECKPOINT_FILE = "checkpoint.pt"
"""PyTorch's checkpoint in `--save-to`, a zip archive."""


def check_options(trainer: Trainer, ranks: int, values: Values) -> None:
    """Raises UsageError for the first wrong combination.

    `ranks`: those that faults can name; `values`: all options of the trainer.
    """
    if trainer.least_ranks > ranks:
        raise UsageError(f"{trainer.name} needs {trainer.least_ranks} ranks or more", "ranks")
    if trainer.has(Capability.SPLIT_LAYERS):
        _check_tensor_parallel(trainer, ranks, values)
    if trainer.has(Capability.PIPELINE):
        _check_pipeline(trainer, ranks, values)
    if trainer.has_server_rank and values["lr-scaling"] != "none":
        raise UsageError(
            f"{trainer.name} learns from one worker's batch at a time, however many there are: "
            "--lr-scaling can only be none",
            "lr-scaling",
        )
    tensor_parallel = values.get("tp")
    shares = trainer.count_shares(ranks, int(tensor_parallel) if tensor_parallel else None)
    sharers = "ranks" if shares == ranks else "groups"
    sharers = "replicas" if "replicas" in values else sharers
    _check_global_batch(f"{shares} {sharers}", shares, values)
    if trainer.framework is Framework.TORCH:  # tf.data repeats a dataset that is too small
        _check_data(shares, values)
    _check_saving(values)
    if values.get("prefetch") is not None and not values.get("workers"):
        raise UsageError("--prefetch needs loader processes: --workers 1 or more", "prefetch")
    _check_compiling(values)
    if values.get("precision") == "fp16" and trainer.has(Capability.LOCAL_STEPS):
        raise UsageError(
            f"{trainer.name} has no --precision fp16: each rank would scale the loss, and skip "
            "steps, on its own; take bf16",
            "precision",
        )


def check_fit(values: Values) -> None:
    """What `fit` of Keras cannot do."""
    if values.get("api") == "fit" and values["accumulate"] != 1:
        raise UsageError(
            "--accumulate needs --api loop: in fit, Keras 3 fails to accumulate gradients under a "
            "strategy (keras issue 20582)",
            "accumulate",
        )


def check_folder(folder: Path) -> None:
    """Raises UsageError if no checkpoint can be written, or the one that is there is broken."""
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not existing.is_dir():
        raise UsageError(f"--save-to {folder}: {existing} is no folder", "save-to")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise UsageError(f"--save-to {folder}: {existing} cannot be written to", "save-to")
    file = folder / CHECKPOINT_FILE
    if file.exists() and not zipfile.is_zipfile(file):
        raise UsageError(
            f"{file} is no checkpoint, or only a part of one: move it away, or name another folder "
            "with --save-to",
            "save-to",
        )


def _check_tensor_parallel(trainer: Trainer, ranks: int, values: Values) -> None:
    model = str(values["model"])
    if model not in HEADS:
        raise UsageError(
            f"{trainer.name} divides attention and MLPs, and {model} has none: take --model "
            "gpt-nano",
            "model",
        )
    by = "tp" if "tp" in values else "ranks"
    size = int(values["tp"] or 1) if by == "tp" else ranks
    if HEADS[model] % size:
        raise UsageError(
            f"{trainer.name} divides the {HEADS[model]} attention heads of {model}, so --{by} must "
            f"divide them evenly: {size} does not",
            by,
        )
    if ranks % size:
        raise UsageError(f"--tp {size} does not divide {ranks} ranks into equal groups", "tp")
    if values["precision"] == "fp16":
        raise UsageError(
            f"{trainer.name} has no --precision fp16: ranks that hold different weights would skip "
            "different steps; take bf16",
            "precision",
        )


def _check_pipeline(trainer: Trainer, ranks: int, values: Values) -> None:
    order, model = values["schedule"], str(values["model"])
    parts = int(values["micro-batches"] or 1)
    batch = int(values["global-batch"] or values["batch"] or BATCH[model])
    stages = ranks * (2 if order in ("interleaved", "zbv") else 1)
    rounds = max(1, parts // ranks)
    mistakes = {
        f"--schedule {order} cuts the model into {stages} stages on {ranks} ranks, and {model} has "
        f"{BLOCKS[model]} blocks to divide": ("ranks", stages > BLOCKS[model]),
        f"a batch of {batch} samples cannot be divided into {parts} equal micro-batches": (
            "micro-batches",
            batch % parts,
        ),
        "--schedule 1f1b needs as many micro-batches as there are ranks, or more: "
        f"{parts} are too few": ("micro-batches", order == "1f1b" and parts < ranks),
        f"--schedule interleaved takes micro-batches in {rounds} equal rounds on {ranks} ranks, "
        f"and {parts} cannot be divided so": (
            "micro-batches",
            order == "interleaved" and parts % rounds,
        ),
        f"{trainer.name} has no --accumulate: a batch already goes through in --micro-batches, "
        "whose gradients are added up": ("accumulate", values["accumulate"] != 1),
        f"{trainer.name} computes in fp32 only": ("precision", values["precision"] != "fp32"),
        "--schedule zbv divides backward in two, and --checkpointing would recompute in both": (
            "checkpointing",
            order == "zbv" and values["checkpointing"] != "none",
        ),
    }
    for sentence, (option, applies) in mistakes.items():
        if applies:
            raise UsageError(sentence, option)


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
            "--checkpointing selective chooses among operations, and --compile leaves none: take "
            "full",
            "checkpointing",
        )


def _check_global_batch(sharing: str, shares: int, values: Values) -> None:
    global_batch = values.get("global-batch")
    if global_batch is None:
        return
    if values["batch"] is not None:
        raise UsageError("give either --batch or --global-batch", "global-batch")
    parts = shares * int(values["accumulate"] or 1)
    if int(global_batch) % parts:
        raise UsageError(
            f"--global-batch {global_batch} cannot be divided into {parts} equal batches "
            f"({sharing} × --accumulate {values['accumulate']})",
            "global-batch",
        )


def _check_data(shares: int, values: Values) -> None:
    option = "batch" if values["global-batch"] is None else "global-batch"
    batch, model = values[option], str(values["model"])
    if batch is None or batch == AUTO:
        return
    parts = shares * int(values["accumulate"] or 1) if option == "global-batch" else 1
    size, available = int(batch) // parts, count_samples(model)
    if size * shares > available:
        several = f"{shares} × " if shares > 1 else ""
        raise UsageError(
            f"{several}{size} samples at once are more than the {available} that {model} is "
            "trained on",
            option,
        )


def _check_saving(values: Values) -> None:
    if values["save-every"] is not None and not values["save-to"]:
        raise UsageError("--save-every needs a folder: --save-to FOLDER", "save-every")
    if values["save-to"]:
        check_folder(Path(str(values["save-to"])))
