"""Pauses that the probe times itself: the garbage collector's and checkpoints."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.findings import Finding, Fix, Predicted
from mgpu_doctor.formatting import format_ranks, format_seconds
from mgpu_doctor.rules.rule import Limits, Rule
from mgpu_doctor.rules.slow.stall_finding import (
    COST,
    RECURS,
    busy,
    finding,
    less_often,
    of_phases,
    told_by,
    when,
    without,
)

FULL = 2
"""The generation that a full collection collects."""


def _gc(measures: Measures, limits: Limits) -> Iterable[Finding]:
    for one in of_phases(measures, ("gc",), limits["cost"]):
        everywhere = len(one.ranks) > 1
        waits = (
            "each rank stops in steps of its own, and all others wait every time"
            if everywhere
            else "the others wait for it every time"
        )
        yield finding(
            measures,
            one,
            code="gc-pauses",
            title=f"Python's garbage collector stops {format_ranks(one.ranks)} "
            f"{when(measures, one)}, for {format_seconds(one.seconds)} each time",
            cause=f"The collector looks through all objects that the process keeps (data sets of "
            f"Python objects, caches, the modules themselves); {waits}.{_generations(measures)}",
            fixes=(
                Fix(
                    "gc-freeze",
                    "Take what lives for ever out of the collector's sight",
                    "Before the training loop, when models and data sets are made: "
                    "`import gc; gc.collect(); gc.freeze()`.",
                    without(one, "collections, an upper bound: young objects are still looked at"),
                ),
                Fix(
                    "gc-together",
                    "Collect on all ranks in the same step, and young objects only",
                    "Before the loop: `gc.disable()`. In it: `if step % 500 == 0: gc.collect(1)`. "
                    "Do the same on every rank. Garbage in reference cycles lives longer: "
                    "watch the memory of the process, and collect more often if it grows.",
                    without(one, "collections, an upper bound: one in 500 steps remains"),
                ),
            ),
            replaces=told_by(measures, one),
        )


def _generations(measures: Measures) -> str:
    """What the events of single pauses tell."""
    pauses = [event for rank in measures.case.ranks for event in rank.events if event.kind == "gc"]
    full = [event.seconds for event in pauses if event.value == FULL]
    if not full:
        return ""
    return (
        f" {len(full)} of {len(pauses)} pauses on record were full collections (median "
        f"{format_seconds(float(np.median(full)))}): where the code calls `gc.collect()` itself, "
        "that is "
        "why."
    )


def _checkpoint(measures: Measures, limits: Limits) -> Iterable[Finding]:
    for one in of_phases(measures, ("checkpoint",), limits["cost"]):
        count = len(measures.joined.ranks) if measures.joined else 1
        alone = len(one.ranks) < count
        fixes = [
            Fix(
                "save-in-background",
                "Copy the state, go on training, and write it meanwhile",
                "On all ranks alike: `import torch.distributed.checkpoint as dcp`; when it is "
                "time, `if pending is not None: pending.result()`, then `pending = "
                'dcp.async_save({"model": model, "optimizer": optimizer}, '
                'checkpoint_id=f"checkpoints/{step}")`. It needs a process group with a CPU '
                'backend (`init_process_group("cpu:gloo,cuda:nccl")`) and memory of the host for '
                "one copy.",
                without(one, "saving, an upper bound: the copy still takes time"),
            ),
            less_often(one, "Save", "`if step % {steps} == 0:` around the saving"),
        ]
        if alone and count > 1:
            fixes.append(
                Fix(
                    "save-sharded",
                    f"Let all {count} ranks write a part each",
                    'torch.distributed.checkpoint: `dcp.save({"model": model, "optimizer": '
                    'optimizer}, checkpoint_id=f"checkpoints/{step}")` on all ranks: each writes '
                    "its share, to a folder that all of them see.",
                    Predicted(
                        1 - one.saved * (1 - 1 / count),
                        None,
                        f"formula: 1/{count} of the bytes a rank, if the storage takes them "
                        f"{count} at a time",
                    ),
                )
            )
        who = f"on {format_ranks(one.ranks)}" if alone else "on all ranks"
        waits = "; the other ranks wait for it in their next collective" if alone else ""
        yield finding(
            measures,
            one,
            code="checkpoint-stall",
            title=f"Saving a checkpoint {who} stops the training {when(measures, one)}, for "
            f"{format_seconds(one.seconds)} each time",
            cause=f"The training loop stands still until the checkpoint is written{waits}."
            f"{busy(one)}",
            fixes=tuple(fixes),
            replaces=told_by(measures, one),
        )


RULES = (
    Rule(
        code="gc-pauses",
        family="slow",
        summary="Python's garbage collector stops ranks, each at moments of its own, and all "
        "others wait.",
        measured="`gc.callbacks` time every collection; what they cost all ranks together is a "
        "what-if over the same steps without them. Not told while a GPU runs ahead of the host.",
        thresholds=RECURS,
        fixes="`gc.freeze()` when everything is set up; `gc.disable()` and `gc.collect(1)` every "
        "some hundred steps on all ranks at once.",
        examine=_gc,
        needs=("stalls",),
        limits=(COST,),
    ),
    Rule(
        code="checkpoint-stall",
        family="slow",
        summary="Saving checkpoints stops the training again and again.",
        measured="Time in `torch.save` and `torch.distributed.checkpoint.save`, on each rank; the "
        "cost is a what-if over the same steps without it. Where the step records hold too few of "
        "them, the history of the whole run is used.",
        thresholds=RECURS,
        fixes="Save in the background (`torch.distributed.checkpoint.async_save`), less often, or "
        "a share on each rank.",
        examine=_checkpoint,
        needs=("stalls",),
        limits=(COST,),
    ),
)
