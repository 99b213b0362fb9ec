"""Treatments of the computation: optimizers, precision, compilers and memory layout."""

from __future__ import annotations

from mgpu_doctor.advice.treatment import (
    FSDP,
    WHOLE,
    DdpTreatment,
    Effect,
    FsdpTreatment,
    ModelTreatment,
    Remedy,
    Situation,
    TensorflowTreatment,
    TorchTreatment,
    Value,
)

FUSED_OPTIMIZERS = frozenset({"SGD", "Adam", "AdamW", "Adagrad"})


def _fused(job: Situation) -> Value | str:
    kinds = {optimizer.kind for optimizer in job.metadata.optimizers}
    if not kinds:
        return "no optimizer was seen"
    return True if kinds & FUSED_OPTIMIZERS else "its optimizer has no fused implementation"


def _foreach(job: Situation) -> Value | str:
    if not str(job.metadata.device or "cpu").startswith("cpu"):
        return "torch does this on GPUs already"
    return _fused(job)


def _autocast(job: Situation) -> Value | str:
    precision = job.metadata.precision or "float32"
    return True if precision == "float32" else f"it computes in {precision} already"


def _tf32(job: Situation) -> Value | str:
    return "it uses TF32 already" if job.metadata.tf32 else _autocast(job)


def _zero1(job: Situation) -> Value | str:
    if "zero1" in job.strategy:
        return "its optimizer is sharded already"
    kinds = {optimizer.kind for optimizer in job.metadata.optimizers}
    return True if kinds & FUSED_OPTIMIZERS else "its optimizer is none of those"


COMPUTES_FULL = Remedy("autocast", ("precision-full",))
LAUNCHES_SLOWLY = Remedy("compile", ("launch-bound", "low-utilization"))
NEEDS_MEMORY = Remedy("plan-memory", ("oom-risk", "oom-device"))
UPDATE = "implementation of the update"

OPTIMIZER_FUSED = TorchTreatment(
    "optimizer-fused",
    "Update all parameters in one fused operation",
    "SGD, Adam, AdamW or Adagrad.",
    _fused,
    lines="torch.optim.AdamW(..., fused=True)",
    effect=Effect.ROUNDING,
    switches=True,
    slot=UPDATE,
)
OPTIMIZER_ZERO1 = DdpTreatment(
    "optimizer-zero1",
    "Shard the states of the optimizer over the ranks as in ZeRO-1, which saves memory",
    "SGD, Adam, AdamW or Adagrad, made after init_process_group. To save the states, the "
    "script must call consolidate_state_dict first; otherwise it fails.",
    _zero1,
    lines="ZeroRedundancyOptimizer(parameters, torch.optim.AdamW, "
    "parameters_as_bucket_view=True, ...)  # torch.distributed.optim",
    applies=NEEDS_MEMORY,
    only_by_name=True,
)
ACTIVATION_CHECKPOINTING = TorchTreatment(
    "activation-checkpointing",
    "Keep only the inputs of repeated blocks, and compute the rest again in the backward pass, "
    "which saves memory",
    "Blocks of one class in a ModuleList or Sequential, without batch normalization, that "
    "change nothing outside of themselves.",
    lines="block.forward = functools.partial(torch.utils.checkpoint.checkpoint, "
    "block.forward, use_reentrant=False)  # for each block",
    strategies=WHOLE | FSDP,
    applies=NEEDS_MEMORY,
    only_by_name=True,
)
AUTOCAST_BF16 = ModelTreatment(
    "autocast-bf16",
    "Compute the forward pass in bfloat16",
    "Hardware that computes in bfloat16.",
    _autocast,
    lines='with torch.autocast("cuda", torch.bfloat16): around forward and loss',
    effect=Effect.CONVERGENCE,
    applies=COMPUTES_FULL,
    switches=True,
)
KERAS_JIT = TensorflowTreatment(
    "keras-jit",
    "Compile the training step of Keras with XLA",
    "The script uses compile and fit of Keras 3, with operations that XLA knows.",
    lambda job: "it is compiled with XLA already" if job.metadata.jit else True,
    lines="model.compile(..., jit_compile=True)",
    effect=Effect.ROUNDING,
    applies=LAUNCHES_SLOWLY,
    start_seconds=60.0,
)
KERAS_MIXED_BF16 = TensorflowTreatment(
    "keras-mixed-bf16",
    "Compute the layers of Keras in bfloat16, with weights in float32",
    "Keras 3, and hardware that computes in bfloat16.",
    _autocast,
    lines='keras.mixed_precision.set_global_policy("mixed_bfloat16")',
    effect=Effect.CONVERGENCE,
    applies=COMPUTES_FULL,
)

TREATMENTS = (
    OPTIMIZER_FUSED,
    TorchTreatment(
        "optimizer-foreach",
        "Update parameters in groups instead of one by one",
        "SGD, Adam, AdamW or Adagrad, on the CPU.",
        _foreach,
        lines="torch.optim.AdamW(..., foreach=True)",
        effect=Effect.ROUNDING,
        switches=True,
        slot=UPDATE,
    ),
    OPTIMIZER_ZERO1,
    TorchTreatment(
        "drop-gradients",
        "Drop gradients after an update instead of filling them with zeros",
        "The script calls zero_grad(set_to_none=False), which few do.",
        lines="optimizer.zero_grad(set_to_none=True)",
        switches=True,
        only_by_name=True,
    ),
    ACTIVATION_CHECKPOINTING,
    AUTOCAST_BF16,
    FsdpTreatment(
        "fsdp-mixed-bf16",
        "Gather parameters and compute in bfloat16, with weights and sums of gradients in float32",
        "Hardware that computes in bfloat16, and NCCL.",
        _autocast,
        lines="fully_shard(..., mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, "
        "reduce_dtype=torch.float32))",
        effect=Effect.CONVERGENCE,
        applies=COMPUTES_FULL,
        needs_gpu=True,
    ),
    ModelTreatment(
        "compile",
        "Compile the model",
        "A model that torch.compile can trace, and on CPUs a C++ compiler. The first steps take "
        "longer.",
        lines="model.compile()  # before training and before DistributedDataParallel",
        effect=Effect.ROUNDING,
        applies=LAUNCHES_SLOWLY,
        start_seconds=120.0,
    ),
    ModelTreatment(
        "channels-last",
        "Store images and the weights of convolutions with the channels last",
        "A model with convolutions.",
        lines="model.to(memory_format=torch.channels_last)  # before training and "
        "before DistributedDataParallel",
        effect=Effect.ROUNDING,
    ),
    TorchTreatment(
        "tf32",
        "Let matrix multiplications and convolutions round float32 to TF32",
        "A GPU of the Ampere generation or newer.",
        _tf32,
        lines='torch.set_float32_matmul_precision("high")',
        effect=Effect.CONVERGENCE,
        applies=Remedy("tf32", ("precision-full",)),
        needs_gpu=True,
    ),
    TorchTreatment(
        "cudnn-benchmark",
        "Let cuDNN time its algorithms and take the fastest",
        "Convolutions of inputs whose sizes stay the same.",
        lines="torch.backends.cudnn.benchmark = True",
        effect=Effect.ROUNDING,
        needs_gpu=True,
    ),
    KERAS_JIT,
    KERAS_MIXED_BF16,
)
