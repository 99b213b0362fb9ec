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
    each_lasts,
    finding,
    less_often,
    of_phases,
    reported_by,
    when,
    without,
)

FULL = 2
"""The generation that a full collection collects."""


def _gc(measures: Measures, limits: Limits) -> Iterable[Finding]:
    for stalls in of_phases(measures, ("gc",), limits["cost"]):
        several = measures.joined is not None
        where = format_ranks(stalls.ranks) if len(measures.case.ranks) > 1 else "the training"
        if not several:
            waits = "the training waits each time"
        elif len(stalls.ranks) > 1:
            waits = "the ranks stop in different steps, and all others wait each time"
        else:
            waits = "the other ranks wait each time"
        yield finding(
            measures,
            stalls,
            code="gc-pauses",
            title=f"Python's garbage collector stops {where} "
            f"{when(measures, stalls)}, for {format_seconds(stalls.seconds)} each time",
            cause=f"The collector scans all objects in the process (data sets of Python objects, "
            f"caches, the modules themselves); {waits}.{_generations(measures)}",
            fixes=(
                Fix(
                    "gc-freeze",
                    "Exclude long-lived objects from garbage collection",
                    "Before the training loop, once models and data sets exist, call `import gc; "
                    "gc.collect(); gc.freeze()`.",
                    without(stalls, "collections, an upper bound: young objects are still scanned"),
                ),
                Fix(
                    "gc-together",
                    "Collect only young objects"
                    f"{', in the same step on all ranks' if several else ', now and then'}",
                    "Call `gc.disable()` before the loop and `if step % 500 == 0: gc.collect(1)` "
                    f"in it{', on every rank' if several else ''}. Garbage in reference cycles "
                    "lives longer: watch the process's memory, and collect more often if it grows.",
                    without(stalls, "collections, an upper bound: one in 500 steps remains"),
                ),
            ),
            replaces=reported_by(measures, stalls),
        )


def _generations(measures: Measures) -> str:
    """How many recorded pauses were full collections; empty if none; begins with a space."""
    pauses = [event for rank in measures.case.ranks for event in rank.events if event.kind == "gc"]
    full = [event.seconds for event in pauses if event.value == FULL]
    if not full:
        return ""
    return (
        f" {len(full)} of {len(pauses)} recorded pauses were full collections (median "
        f"{format_seconds(float(np.median(full)))}). Check whether the code calls `gc.collect()`."
    )


def _checkpoint(measures: Measures, limits: Limits) -> Iterable[Finding]:
    for stalls in of_phases(measures, ("checkpoint",), limits["cost"]):
        count = len(measures.joined.ranks) if measures.joined else 1
        alone = len(stalls.ranks) < count
        fixes = [
            Fix(
                "save-in-background",
                "Save in the background while training continues",
                "On every rank, `import torch.distributed.checkpoint as dcp`; to save, "
                "`if pending is not None: pending.result()`, then `pending = "
                'dcp.async_save({"model": model, "optimizer": optimizer}, '
                'checkpoint_id=f"checkpoints/{step}")`. This needs host memory for one copy and, '
                "in a job of several ranks, a process group with a CPU backend "
                '(`init_process_group("cpu:gloo,cuda:nccl")`).',
                without(stalls, "saving, an upper bound: the copy still takes time"),
            ),
            *less_often(stalls, "Save", "`if step % {steps} == 0:` around the saving"),
        ]
        if alone and count > 1:
            fixes.append(
                Fix(
                    "save-sharded",
                    f"Write one shard on each of the {count} ranks",
                    'torch.distributed.checkpoint: `dcp.save({"model": model, "optimizer": '
                    'optimizer}, checkpoint_id=f"checkpoints/{step}")` on all ranks: each writes '
                    "its shard to a shared folder.",
                    Predicted(
                        1 - stalls.saved * (1 - 1 / count),
                        None,
                        f"formula: 1/{count} of the bytes per rank, if the storage accepts {count} "
                        "writers at full speed",
                    ),
                )
            )
        independent = measures.structure.independent
        who = f" on {format_ranks(stalls.ranks)}" if alone or independent else ""
        who = " on all ranks" if not who and count > 1 else who
        waits = "; the other ranks wait for it in their next collective" if alone else ""
        yield finding(
            measures,
            stalls,
            code="checkpoint-stall",
            title=f"Saving a checkpoint{who} stops the training {when(measures, stalls)}, "
            f"{each_lasts(stalls)}",
            cause="The training loop is blocked until the checkpoint is "
            f"written{waits}.{busy(stalls)}",
            fixes=tuple(fixes),
            replaces=reported_by(measures, stalls),
        )


RULES = (
    Rule(
        code="gc-pauses",
        family="slow",
        summary="Python's garbage collector stops the training, or one rank for which others wait.",
        measured="`gc.callbacks` time every collection. The cost is a what-if: the same steps "
        "without the collections. Not reported while the host runs ahead of a GPU.",
        thresholds=RECURS,
        fixes="Call `gc.freeze()` once everything is set up, or `gc.disable()` and then "
        "`gc.collect(1)` every few hundred steps, in the same step on all ranks.",
        examine=_gc,
        needs=("stalls",),
        limits=(COST,),
    ),
    Rule(
        code="checkpoint-stall",
        family="slow",
        summary="Saving checkpoints stops the training.",
        measured="Time in `torch.save` and `torch.distributed.checkpoint.save` on each rank. The "
        "cost is a what-if: the same steps without it. If the step records contain too few "
        "checkpoints, the history of the whole run is used.",
        thresholds=RECURS,
        fixes="Save in the background (`torch.distributed.checkpoint.async_save`), less often, or "
        "one shard per rank.",
        examine=_checkpoint,
        needs=("stalls",),
        limits=(COST,),
    ),
)
