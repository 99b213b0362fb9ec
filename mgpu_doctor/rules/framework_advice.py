"""Fixes in the words of the job's framework.

Rules give fixes for torch, which most jobs use. If a fix differs in TensorFlow, Keras or DeepSpeed,
its text is here, by fix ID. A fix without a counterpart in TensorFlow is left out: advice that
cannot be followed is worse than none. All other fixes are the same in every framework. A test
fails for a new fix that names a torch API and is in neither list.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from mgpu_doctor.case.model import Case, Job
from mgpu_doctor.case.process_metadata import TfPipeline
from mgpu_doctor.findings import Finding, Fix
from mgpu_doctor.rules.advice import LARGER_BATCH

TENSORFLOW_FRAMEWORKS = ("tensorflow", "keras")
DEEPSPEED = "deepspeed"
"""The name of its engine in a rank's strategy."""
_PREFETCH = "as the last call, `ds.prefetch(tf.data.AUTOTUNE)`"
_PARALLEL = "`ds.map(f, num_parallel_calls=tf.data.AUTOTUNE)`"
_CACHE = "`.cache()` after the costly part where its results fit into memory"
_ONE_BY_ONE = (
    "from_generator and tf.py_function run one at a time under the GIL: write the samples to "
    "TFRecord files, or create them with TensorFlow operations."
)


def advise(finding: Finding, case: Case) -> Finding:
    """The finding with the fixes that a user of the job's framework can follow."""
    fixes = finding.fixes
    if uses_deepspeed(case.job):
        on_cpu = all((rank.device or "cpu") == "cpu" for rank in case.ranks)
        kept = [fix for fix in fixes if not (on_cpu and fix.id in NEED_STREAMS)]
        # A formula for torch's implementation predicts nothing about another one.
        fixes = tuple(
            replace(fix, how=IN_DEEPSPEED[fix.id], predicted=None)
            if fix.id in IN_DEEPSPEED
            else fix
            for fix in kept
        )
    if case.job.framework in TENSORFLOW_FRAMEWORKS:
        fixes = tuple(_in_tensorflow(fix, case) for fix in fixes if fix.id not in ONLY_IN_TORCH)
    return finding if fixes == finding.fixes else replace(finding, fixes=fixes)


def uses_deepspeed(job: Job) -> bool:
    """Whether DeepSpeed's engine trains."""
    return DEEPSPEED in (job.strategy or "").split("+")


def _in_tensorflow(fix: Fix, case: Case) -> Fix:
    how = IN_TENSORFLOW.get(fix.id)
    if how is None:
        return fix
    return replace(fix, how=how if isinstance(how, str) else how(case))


def _load_in_background(case: Case) -> str:
    """How to prepare batches during the step, given what the tf.data pipeline does already."""
    known = (rank.metadata.pipelines for rank in case.ranks)
    return _in_background(next((pipelines[0] for pipelines in known if pipelines), None))


def _in_background(now: TfPipeline | None) -> str:
    """How to prepare batches during the step, given what the tf.data pipeline does already."""
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
    changes = "; ".join(lacks) or "do less of it (decode and resize once, beforehand)"
    return f"{changes[0].upper()}{changes[1:]}. {_ONE_BY_ONE}"


IN_TENSORFLOW: Mapping[str, str | Callable[[Case], str]] = {
    "load-in-background": _load_in_background,
    "let-go": "Common reasons: lists of metrics, samples or tensors that only grow, a data set "
    "that caches decoded samples, a tf.function that is traced again for every new Python "
    "argument and keeps each graph. `python -X tracemalloc=10` or memray shows the lines that "
    "hold the most memory after some minutes.",
    "equal-batches": "`ds.batch(size, drop_remainder=True)` with the same size on every worker, "
    "after `ds.shard(workers, index)`.",
    "share-evenly": "`global_batch // strategy.num_replicas_in_sync` for each replica, and "
    "`ds.batch(..., drop_remainder=True)`.",
    "even-batches": "`ds.repeat()` and a fixed number of steps (`steps_per_epoch`), the same on "
    "every worker.",
    "save-checkpoints": "`keras.callbacks.BackupAndRestore` in `fit`; in your own loop, "
    "`tf.train.CheckpointManager(...).save()` every few minutes and `restore_or_initialize()`.",
    "restart-faster": "Keep the environment, the data and the newest checkpoint on local disks.",
    "accumulate": "In your own loop: `v.assign_add(gradient)` into one variable per weight, and "
    "`optimizer.apply_gradients`, which does the all-reduce, in every K-th step. Keras' "
    "`gradient_accumulation_steps=K` works only without a strategy (keras#20582).",
    "fewer-threads": "`tf.config.threading.set_intra_op_parallelism_threads(N)` and "
    "`set_inter_op_parallelism_threads(2)`, before anything is computed; or, from outside, "
    "`TF_NUM_INTRAOP_THREADS=N TF_NUM_INTEROP_THREADS=2`.",
    "save-in-background": "`checkpoint.save(path, "
    "options=tf.train.CheckpointOptions(enable_async=True))`, or `keras.callbacks.ModelCheckpoint` "
    "less often.",
    "evaluate-together": "`strategy.experimental_distribute_dataset(validation)` and the "
    "evaluation step by strategy.run on every worker; Keras metrics are summed automatically.",
    "find-the-operation": "`tf.debugging.enable_check_numerics()` at the top of the program, for "
    "one run: it names the operation and the line. Resume from a checkpoint before it.",
    "check-the-start": "`tf.debugging.assert_all_finite(w, name)` for every w of model.weights "
    "after building or loading, and for the first batch; then "
    "`tf.debugging.enable_check_numerics()`.",
    "bound-the-update": "`keras.optimizers.Adam(..., clipnorm=1.0)`; a lower learning rate or a "
    "longer warm-up; mixed_bfloat16, or `keras.mixed_precision.LossScaleOptimizer` with "
    "mixed_float16.",
    "compile": "`model.compile(..., jit_compile=True)` or `tf.function(jit_compile=True)`, where "
    "no strategy divides the batch.",
    "tf32": "`tf.config.experimental.enable_tensor_float_32_execution(True)`: on by default.",
    "overlap-host-work": "Save and evaluate less often; `steps_per_execution=10` in "
    "`model.compile`; read losses every 100th step.",
}
"""Fix ID -> its text for TensorFlow or Keras."""
IN_DEEPSPEED: Mapping[str, str] = {
    "accumulate": 'In the DeepSpeed configuration: "gradient_accumulation_steps": 4, and '
    '"train_batch_size", if it is there, four times as large; engine.backward(loss) and '
    "engine.step() stay in every batch, as the engine itself knows when to update. Gradients are "
    "exchanged once per update with ZeRO stages 0 and 1; stages 2 and 3 exchange them in every "
    f"batch.\n{LARGER_BATCH}",
    "bound-the-update": 'In the DeepSpeed configuration: "gradient_clipping": 1.0; a lower '
    'learning rate or a longer warm-up; "bf16": {"enabled": true} instead of "fp16".',
    "use-ddp": 'In the DeepSpeed configuration: "zero_optimization": {"overlap_comm": true}, on '
    "devices that have streams; it needs memory for a second set of buckets.",
    "autocast": 'In the DeepSpeed configuration: "bf16": {"enabled": true}.',
}
"""Fix ID -> its text for DeepSpeed's configuration, which replaces torch's wrappers and calls."""
NEED_STREAMS = frozenset({"use-ddp"})
"""Fix IDs without a counterpart in DeepSpeed on CPUs."""
ONLY_IN_TORCH = frozenset(
    {
        "all-or-none",
        "anomaly-mode",
        "answer-or-remove",
        "bound-the-loader",
        "compress",
        "divide-the-batch",
        "dynamic-shapes",
        "end-model-first",
        "end-the-group",
        "expandable-segments",
        "fewer-in-flight",
        "fewer-ranks",
        "fewer-workers",
        "file-system-sharing",
        "hand-over-less",
        "keep-replicas-equal",
        "less-memory",
        "longer-timeout",
        "map-location",
        "fix-the-data-set",
        "native-stack",
        "no-search",
        "no-sleep",
        "no-sync",
        "one-copy",
        "one-seed",
        "overlap",
        "overlap-copies",
        "own-device",
        "save-sharded",
        "see-why",
        "seed-by-rank",
        "set-device",
        "shard-by-the-group",
        "shard-the-data",
        "share-it-out",
        "shared-memory",
        "shorter-timeout",
        "smaller-buckets",
        "stamp-the-logs",
        "start-them-all",
        "supervise",
        "use-ddp",
        "whole-batch",
    }
)
"""Fix IDs without a counterpart in TensorFlow."""
