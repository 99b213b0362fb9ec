"""Findings of TensorFlow jobs in TensorFlow's words.

Rules say what to type in torch, which most jobs run. Here a fix of theirs is said in TensorFlow,
by its id; one that has no counterpart there is left out: advice that cannot be followed is worse
than none.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from mgpu_doctor.case.model import Job, Rank
from mgpu_doctor.case.process_metadata import TfPipeline
from mgpu_doctor.findings import Finding, Fix

FRAMEWORKS = ("tensorflow", "keras")
HOW = {
    "equal-batches": "ds.batch(size, drop_remainder=True) with the same size on every worker, "
    "after ds.shard(workers, index).",
    "share-evenly": "global batch // strategy.num_replicas_in_sync for each replica, and "
    "ds.batch(..., drop_remainder=True).",
    "even-batches": "ds.repeat() and a fixed number of steps (`steps_per_epoch`), the same on "
    "every worker.",
    "accumulate": "In a loop of your own: v.assign_add(gradient) into variables, one a weight, and "
    "optimizer.apply_gradients, which is what reduces, in every K-th step. Keras' "
    "gradient_accumulation_steps=K works without a strategy only (keras#20582).",
    "fewer-threads": "tf.config.threading.set_intra_op_parallelism_threads(N) and "
    "set_inter_op_parallelism_threads(2), before anything is computed; or, from outside, "
    "TF_NUM_INTRAOP_THREADS=N TF_NUM_INTEROP_THREADS=2.",
    "save-in-background": "checkpoint.save(path, options=tf.train.CheckpointOptions("
    "enable_async=True)), or keras.callbacks.ModelCheckpoint less often.",
    "evaluate-together": "strategy.experimental_distribute_dataset(validation) and the evaluation "
    "step by strategy.run on every worker; metrics of Keras add up by themselves.",
    "find-the-operation": "tf.debugging.enable_check_numerics() at the top of the program, for one "
    "run: it names the operation and the line; go on from a checkpoint before it.",
    "bound-the-update": "keras.optimizers.Adam(..., clipnorm=1.0); a lower learning rate or a "
    "longer warm-up; mixed_bfloat16, or keras.mixed_precision.LossScaleOptimizer with "
    "mixed_float16.",
    "compile": "model.compile(..., jit_compile=True) or tf.function(jit_compile=True), where no "
    "strategy divides the batch.",
    "tf32": "tf.config.experimental.enable_tensor_float_32_execution(True): on by default.",
    "overlap-host-work": "Save and evaluate less often; steps_per_execution=10 in model.compile; "
    "read losses every 100th step.",
}
BACKGROUND = "load-in-background"
_PREFETCH = "last of all, ds.prefetch(tf.data.AUTOTUNE)"
_PARALLEL = "ds.map(f, num_parallel_calls=tf.data.AUTOTUNE)"
_CACHE = ".cache() after the costly part where its results fit into memory"
_ONE_BY_ONE = (
    "from_generator and tf.py_function run one at a time under Python's lock: write the samples to "
    "TFRecord files, or make them by TensorFlow operations."
)
_TORCH = re.compile(
    r"torch|DataLoader|DistributedSampler|DistributedDataParallel|no_sync|num_workers"
    r"|OMP_NUM_THREADS|\bdist\.|autograd|\bdcp\."
)
_INSTEAD = (
    ("torch.save and torch.distributed.checkpoint.save", "checkpoints"),
    ("than torch.save", "than checkpoints of TensorFlow or Keras"),
    ("torch.save", "saving"),
    ("torch.compile", "tf.function"),
    ("DistributedDataParallel", "the strategy"),
)
"""What causes say in torch's words."""


def spoken(finding: Finding, job: Job, ranks: Sequence[Rank] = ()) -> Finding:
    """The finding as a user of the job's framework would put it; `ranks` tell what their data sets
    have already."""
    if job.framework not in FRAMEWORKS:
        return finding
    told = tuple(filter(None, (_fix(one, ranks) for one in finding.fixes)))
    return replace(finding, fixes=told, cause=_cause(finding.cause))


def _fix(fix: Fix, ranks: Sequence[Rank]) -> Fix | None:
    if fix.id == BACKGROUND:
        known = (rank.metadata.pipelines for rank in ranks)
        return replace(fix, how=_in_background(next((one[0] for one in known if one), None)))
    if fix.id in HOW:
        return replace(fix, how=HOW[fix.id])
    return None if _TORCH.search(f"{fix.summary} {fix.how}") else fix


def _in_background(now: TfPipeline | None) -> str:
    """How to make batches while the step runs, knowing what the data set does."""
    if now is None:
        return f"{_PARALLEL} and, {_PREFETCH}; {_CACHE}. {_ONE_BY_ONE}"
    lacks = []
    if now.parallel_calls == 1:
        lacks.append(f"its map makes one element at a time now: {_PARALLEL}")
    if now.prefetch == 0:
        lacks.append(f"it has no prefetch now: {_PREFETCH}")
    if now.cached is False:
        lacks.append(_CACHE)
    if now.prefetch and now.parallel_calls not in (None, 1):
        lacks.append(
            "it has prefetch and parallel calls already: do less in the map (decode and resize "
            "once, beforehand), or read fewer and larger files"
        )
    told = "; ".join(lacks) or "do less of it (decode and resize once, beforehand)"
    return f"{told[0].upper()}{told[1:]}. {_ONE_BY_ONE}"


def _cause(cause: str) -> str:
    for theirs, ours in _INSTEAD:
        cause = cause.replace(theirs, ours)
    return cause
