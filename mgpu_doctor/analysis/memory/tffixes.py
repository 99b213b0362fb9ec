"""The fixes that are known for TensorFlow, from what costs nothing to what changes the training."""

from __future__ import annotations

from dataclasses import replace

from mgpu_doctor.analysis.memory.fix import SMALLER_BATCH, UNMEASURED, Fix, Time
from mgpu_doctor.analysis.memory.settings import Checkpointing
from mgpu_doctor.analysis.memory.variants import (
    accumulate,
    bf16,
    checkpointing,
    sgd,
    traced,
    where,
)

IN_TENSORFLOW = (
    Fix(
        "mixed-precision",
        "Train in mixed precision (bfloat16)",
        'keras.mixed_precision.set_dtype_policy("mixed_bfloat16") before the model is built',
        traced(bf16),
        Time(None, "mostly faster on GPUs with tensor cores; not measured"),
        "weights and optimizer states stay float32; mixed_float16, for GPUs before Ampere, needs "
        "loss scaling (keras.optimizers.LossScaleOptimizer)",
        "the step is your own, or could not be traced so",
    ),
    Fix(
        "recompute",
        "Keep no layer's activations, but compute them again in backward",
        "layer.call = tf.recompute_grad(layer.call) for every layer, or for whole blocks of them",
        traced(checkpointing(Checkpointing.FULL)),
        Time(1 / 3, "at most: one more forward pass"),
        "predicted layer by layer; whole blocks save more, which is not predicted",
        "the step is your own, or a layer of it cannot be called so",
    ),
    Fix(
        "accumulate",
        "Smaller micro-batches, and more of them before an update",
        "keras.optimizers.AdamW(…, gradient_accumulation_steps={accumulate}) and batches of "
        "{batch}",
        traced(accumulate),
        Time(None, f"smaller kernels use a GPU less well; {UNMEASURED}"),
        "batch norm sees the smaller batch; Keras 3 fails with it under a strategy (keras #20582)",
    ),
    Fix(
        "xla",
        "Let XLA compile the step",
        "model.compile(…, jit_compile=True), or tf.function(step, jit_compile=True)",
        where(lambda _: True, lambda plan: replace(plan, xla=True)),
        Time(None, UNMEASURED),
        "",
        "XLA fuses operations, which mostly needs less, but lays memory out by itself, recomputes "
        "as it likes and needs scratch memory to tune kernels: it can need more, so try it",
    ),
    SMALLER_BATCH,
    Fix(
        "sgd",
        "An optimizer without states",
        "keras.optimizers.SGD(…)",
        traced(sgd),
        Time(0.0, "the update is smaller"),
        "changes the training: most transformers do not learn well with it",
        "the step is your own, so its optimizer is, too",
    ),
    Fix(
        "memory-growth",
        "Let TensorFlow take memory as it needs it",
        "tf.config.experimental.set_memory_growth(gpu, True), or TF_FORCE_GPU_ALLOW_GROWTH=true",
        lambda plan: (plan,),
        Time(0.0, "only the first steps allocate"),
        "it saves nothing that the step needs: without it TensorFlow takes the whole device at "
        "once, and only other programs on it gain; regions that grow can fragment",
    ),
)
