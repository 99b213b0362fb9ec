"""Treatments of the computation: optimizers, precision, compilers and memory layout."""

from __future__ import annotations

from mgpu_doctor.advice.treatment import DDP, Effect, Situation, Treatment, Value

FUSED_OPTIMIZERS = frozenset({"SGD", "Adam", "AdamW", "Adagrad"})


def _fused(job: Situation) -> Value | str:
    kinds = {optimizer.kind for optimizer in job.metadata.optimizers}
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


TREATMENTS = (
    Treatment(
        name="optimizer-fused",
        summary="Update all parameters in one fused operation",
        framework="torch",
        effect=Effect.ROUNDING,
        lines="torch.optim.AdamW(..., fused=True)",
        needs="SGD, Adam, AdamW or Adagrad.",
        propose=_fused,
        switches=True,
        excludes=frozenset({"optimizer-foreach"}),
    ),
    Treatment(
        name="optimizer-foreach",
        summary="Update parameters in groups instead of one by one",
        framework="torch",
        effect=Effect.ROUNDING,
        lines="torch.optim.AdamW(..., foreach=True)",
        needs="SGD, Adam, AdamW or Adagrad, on the CPU.",
        propose=_foreach,
        switches=True,
        excludes=frozenset({"optimizer-fused"}),
    ),
    Treatment(
        name="drop-gradients",
        summary="Drop gradients after an update instead of filling them with zeros",
        framework="torch",
        lines="optimizer.zero_grad(set_to_none=True)",
        needs="The script calls zero_grad(set_to_none=False), which few do.",
        propose=lambda _: True,
        switches=True,
        waits_to_be_named=True,
    ),
    Treatment(
        name="autocast-bf16",
        summary="Compute the forward pass in bfloat16",
        framework="torch",
        strategies=DDP,
        effect=Effect.CONVERGENCE,
        lines='with torch.autocast("cuda", torch.bfloat16): around forward and loss',
        needs="Hardware that computes in bfloat16.",
        propose=_autocast,
        switches=True,
        fixes=("autocast",),
        codes=("precision-full",),
        waits_to_be_named=True,
    ),
    Treatment(
        name="compile",
        summary="Compile the model",
        framework="torch",
        strategies=DDP,
        effect=Effect.ROUNDING,
        lines="model.compile()  # before DistributedDataParallel",
        needs="A model that torch.compile can trace, and on CPUs a C++ compiler. The first steps "
        "take longer.",
        propose=lambda _: True,
        start_seconds=120.0,
        fixes=("compile",),
        codes=("launch-bound", "low-utilization"),
    ),
    Treatment(
        name="channels-last",
        summary="Store images and the weights of convolutions with the channels last",
        framework="torch",
        strategies=DDP,
        effect=Effect.ROUNDING,
        lines="model.to(memory_format=torch.channels_last)  # before DistributedDataParallel",
        needs="A model with convolutions.",
        propose=lambda _: True,
    ),
    Treatment(
        name="tf32",
        summary="Let matrix multiplications and convolutions round float32 to TF32",
        framework="torch",
        effect=Effect.CONVERGENCE,
        lines='torch.set_float32_matmul_precision("high")',
        needs="A GPU of the Ampere generation or newer.",
        propose=_tf32,
        needs_gpu=True,
        waits_to_be_named=True,
        fixes=("tf32",),
        codes=("precision-full",),
    ),
    Treatment(
        name="cudnn-benchmark",
        summary="Let cuDNN time its algorithms and take the fastest",
        framework="torch",
        effect=Effect.ROUNDING,
        lines="torch.backends.cudnn.benchmark = True",
        needs="Convolutions of inputs whose sizes stay the same.",
        propose=lambda _: True,
        needs_gpu=True,
    ),
    Treatment(
        name="keras-jit",
        summary="Compile the training step of Keras with XLA",
        framework="tensorflow",
        effect=Effect.ROUNDING,
        lines="model.compile(..., jit_compile=True)",
        needs="The script uses compile and fit of Keras 3, with operations that XLA knows.",
        propose=lambda job: "it is compiled with XLA already" if job.metadata.jit else True,
        start_seconds=60.0,
        fixes=("compile",),
        codes=("launch-bound", "low-utilization"),
    ),
    Treatment(
        name="keras-mixed-bf16",
        summary="Compute the layers of Keras in bfloat16, with weights in float32",
        framework="tensorflow",
        effect=Effect.CONVERGENCE,
        lines='keras.mixed_precision.set_global_policy("mixed_bfloat16")',
        needs="Keras 3, and hardware that computes in bfloat16.",
        propose=_autocast,
        waits_to_be_named=True,
        fixes=("autocast",),
        codes=("precision-full",),
    ),
)
