"""The known memory fixes per framework, and how each changes a plan.

A fix turns a plan into milder and stronger ones. What it saves is predicted like any other plan, so
that every phase's peak is found again, and no fix is offered that leaves the peak where it was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from mgpu_doctor.advice.compute_treatments import (
    ACTIVATION_CHECKPOINTING,
    AUTOCAST_BF16,
    KERAS_JIT,
    KERAS_MIXED_BF16,
    OPTIMIZER_FUSED,
    OPTIMIZER_ZERO1,
)
from mgpu_doctor.advice.exchange_treatments import DDP_BUCKET_VIEW
from mgpu_doctor.advice.host_treatments import EXPANDABLE_SEGMENTS, TF_MEMORY_GROWTH
from mgpu_doctor.advice.treatment import Treatment
from mgpu_doctor.analysis.memory.memory_plan import (
    Checkpointing,
    Framework,
    Optimizer,
    Plan,
    Precision,
    Settings,
    Strategy,
)

REPLICATED = {Strategy.DDP, Strategy.ZERO1}
ADAMS = {Optimizer.ADAM, Optimizer.ADAMW}

Variants = Callable[[Plan], tuple[Plan, ...]]
"""Makes the plan with a fix, from mild to strong; none where it does not apply."""
SettingsChange = Callable[[Settings], tuple[Settings, ...]]


def when(applies: Callable[[Plan], bool], change: Callable[[Plan], Plan]) -> Variants:
    """One variant, where the fix applies and changes something."""

    def variants(plan: Plan) -> tuple[Plan, ...]:
        changed = change(plan)
        return (changed,) if applies(plan) and changed != plan else ()

    return variants


def with_settings(change: SettingsChange) -> Variants:
    """Variants with other settings, which need a trace of their own."""
    return lambda plan: tuple(replace(plan, settings=each) for each in change(plan.settings))


def with_checkpointing(wanted: Checkpointing) -> SettingsChange:
    order = list(Checkpointing)

    def change(settings: Settings) -> tuple[Settings, ...]:
        stronger = order.index(wanted) > order.index(settings.checkpointing)
        return (replace(settings, checkpointing=wanted),) if stronger else ()

    return change


def bf16(settings: Settings) -> tuple[Settings, ...]:
    if settings.precision is Precision.BF16:
        return ()
    return (replace(settings, precision=Precision.BF16),)


def accumulate(settings: Settings) -> tuple[Settings, ...]:
    """Micro-batches of half the samples, a quarter, …, and as many more of them."""
    variants = []
    parts = 2
    while parts <= settings.batch and settings.batch % parts == 0:
        batch, more = settings.batch // parts, settings.accumulate * parts
        variants.append(replace(settings, batch=batch, accumulate=more))
        parts *= 2
    return tuple(variants)


def smaller_batch(settings: Settings) -> tuple[Settings, ...]:
    variants = []
    batch = settings.batch // 2
    while batch:
        variants.append(replace(settings, batch=batch))
        batch //= 2
    return tuple(variants)


def sgd(settings: Settings) -> tuple[Settings, ...]:
    if settings.optimizer is Optimizer.SGD:
        return ()
    return (replace(settings, optimizer=Optimizer.SGD),)


def with_strategy(wanted: Strategy, instead_of: set[Strategy]) -> Variants:
    def variants(plan: Plan) -> tuple[Plan, ...]:
        if plan.ranks < 2 or plan.strategy not in instead_of:
            return ()
        view = plan.bucket_view and wanted in REPLICATED
        return (replace(plan, strategy=wanted, bucket_view=view),)

    return variants


def uses_adam(plan: Plan) -> bool:
    return plan.settings.optimizer in ADAMS and not plan.offload_optimizer


UNMEASURED = "depends on the device; not measured"


@dataclass(frozen=True, slots=True)
class Time:
    """What a fix costs in time: how much longer a sample takes, as a fraction; None: unknown.

    `basis`: the source of the number, or why it is unknown.
    """

    fraction: float | None
    basis: str


@dataclass(frozen=True, slots=True)
class Fix:
    """A change to a plan that may save memory.

    `variants`: the plan with the fix, from mild to strong; none where it does not apply. `time`:
    what is known without a trace. `caveat`: what else it changes, or why it is of no use.
    `unknown`: why it could not be predicted. `treatment`: the one that applies it to a job, so that
    `mgpu-doctor treat` can try it.
    """

    id: str
    summary: str
    how: str
    variants: Variants
    time: Time
    caveat: str = ""
    unknown: str = "a trace with it is missing"
    treatment: Treatment | None = None

    def treatment_for(self, plan: Plan) -> Treatment | None:
        """The treatment, if it is for jobs with this plan's strategy."""
        treatment = self.treatment
        if treatment is None or not treatment.strategies:
            return treatment
        return treatment if plan.strategy.value in treatment.strategies else None


SMALLER_BATCH = Fix(
    "smaller-batch",
    "Smaller batches",
    "set the batch of a device to {batch}",
    with_settings(smaller_batch),
    Time(None, f"smaller kernels use a GPU less well; {UNMEASURED}"),
    "changes the training: the learning rate must follow",
)
"""The same in every framework."""


_TORCH = (
    Fix(
        "bucket-view",
        "Let the gradients live in DDP's buckets",
        "DistributedDataParallel(model, gradient_as_bucket_view=True)",
        when(
            lambda plan: plan.strategy in REPLICATED, lambda plan: replace(plan, bucket_view=True)
        ),
        Time(0.0, "one copy of each gradient less"),
        "gradients must not be detached in place (detach_)",
        treatment=DDP_BUCKET_VIEW,
    ),
    Fix(
        "fused-optimizer",
        "Update the weights in one kernel",
        "torch.optim.AdamW(model.parameters(), fused=True, …); Adam and SGD have it, too",
        when(
            lambda plan: not (plan.offload_optimizer or plan.eight_bit_states),
            lambda plan: replace(plan, fused_optimizer=True),
        ),
        Time(0.0, "fewer passes over memory"),
        treatment=OPTIMIZER_FUSED,
    ),
    Fix(
        "expandable-segments",
        "Let the allocator's segments grow",
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        when(lambda _: True, lambda plan: replace(plan, expandable=True)),
        Time(0.0, "the same kernels run; memory is mapped while it grows"),
        "the simulation of it is not validated; such memory cannot be shared between processes",
        treatment=EXPANDABLE_SEGMENTS,
    ),
    Fix(
        "chunked-loss",
        "Compute the cross-entropy in parts",
        "compute head and loss for an eighth of the tokens at a time, under "
        "torch.utils.checkpoint, or use a fused linear cross-entropy",
        when(lambda _: True, lambda plan: replace(plan, chunked_loss=True)),
        Time(None, "the output layer may run twice in backward; not measured"),
    ),
    Fix(
        "bf16",
        "Train in mixed precision (bf16)",
        'with torch.autocast("cuda", dtype=torch.bfloat16): around forward and loss',
        with_settings(bf16),
        Time(None, "mostly faster on GPUs with tensor cores; not measured"),
        "weights and optimizer states stay fp32, and short copies of the weights are kept: small "
        "batches can need more memory than before",
        treatment=AUTOCAST_BF16,
    ),
    Fix(
        "zero1",
        "Divide the optimizer states among the ranks (ZeRO-1)",
        "torch.distributed.optim.ZeroRedundancyOptimizer(model.parameters(), optimizer_class=…)",
        with_strategy(Strategy.ZERO1, {Strategy.DDP}),
        Time(None, "each rank sends its updated weights to all others; depends on the network"),
        treatment=OPTIMIZER_ZERO1,
    ),
    Fix(
        "checkpoint-half",
        "Keep the activations of every second layer only",
        "`torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False)` for every second layer",
        with_settings(with_checkpointing(Checkpointing.HALF)),
        Time(1 / 6, "at most: half of one more forward pass"),
    ),
    Fix(
        "checkpoint-full",
        "Keep no layer's activations, but compute them again in backward",
        "`torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False)` for every layer",
        with_settings(with_checkpointing(Checkpointing.FULL)),
        Time(1 / 3, "at most: one more forward pass"),
        treatment=ACTIVATION_CHECKPOINTING,
    ),
    Fix(
        "accumulate",
        "Smaller micro-batches, and more of them before an update",
        "call `optimizer.step()` once in {accumulate} batches of {batch} (under DDP, with "
        "`model.no_sync()` for all but the last), and divide the loss by {accumulate}",
        with_settings(accumulate),
        Time(None, f"smaller kernels use a GPU less well; {UNMEASURED}"),
        "batch norm sees the smaller batch",
    ),
    Fix(
        "fsdp",
        "Divide weights, gradients and optimizer states among the ranks",
        "torch.distributed.fsdp.fully_shard(layer) for every layer, then fully_shard(model)",
        with_strategy(Strategy.FSDP, {Strategy.SINGLE, Strategy.DDP, Strategy.ZERO1}),
        Time(
            None, "1.5 times the bytes of DDP are sent (arXiv 1910.02054); depends on the network"
        ),
    ),
    Fix(
        "offload-optimizer",
        "Keep the optimizer states on the host and update there",
        "DeepSpeed with offload_optimizer, or torchao's CPUOffloadOptimizer",
        when(
            lambda plan: plan.strategy is not Strategy.FSDP,
            lambda plan: replace(plan, offload_optimizer=True),
        ),
        Time(None, "all gradients and weights cross PCIe every step; depends on its speed"),
        "the host needs the memory instead",
    ),
    Fix(
        "adam-8bit",
        "Keep Adam's states in 8 bits",
        "bitsandbytes.optim.AdamW8bit(model.parameters(), …)",
        when(uses_adam, lambda plan: replace(plan, eight_bit_states=True)),
        Time(None, UNMEASURED),
        "changes the training: watch the loss",
    ),
    SMALLER_BATCH,
    Fix(
        "sgd",
        "An optimizer without states",
        "torch.optim.SGD(model.parameters(), …)",
        with_settings(sgd),
        Time(0.0, "the update is smaller"),
        "changes the training: most transformers do not learn well with it",
    ),
    Fix(
        "empty-cache",
        "Clear the allocator's cache",
        "torch.cuda.empty_cache()",
        lambda plan: (plan,),
        Time(None, "cached memory is allocated again"),
        "it saves nothing: before it fails, the allocator clears its cache by itself; only other "
        "programs on the device gain",
    ),
)

_TENSORFLOW = (
    Fix(
        "mixed-precision",
        "Train in mixed precision (bfloat16)",
        'keras.mixed_precision.set_dtype_policy("mixed_bfloat16") before the model is built',
        with_settings(bf16),
        Time(None, "mostly faster on GPUs with tensor cores; not measured"),
        "weights and optimizer states stay float32; mixed_float16, for GPUs before Ampere, needs "
        "loss scaling (keras.optimizers.LossScaleOptimizer)",
        "the step is your own, or could not be traced so",
        treatment=KERAS_MIXED_BF16,
    ),
    Fix(
        "recompute",
        "Keep no layer's activations, but compute them again in backward",
        "layer.call = tf.recompute_grad(layer.call) for every layer, or for whole blocks of them",
        with_settings(with_checkpointing(Checkpointing.FULL)),
        Time(1 / 3, "at most: one more forward pass"),
        "predicted layer by layer; whole blocks save more, which is not predicted",
        "the step is your own, or a layer of it cannot be called so",
    ),
    Fix(
        "accumulate",
        "Smaller micro-batches, and more of them before an update",
        "`keras.optimizers.AdamW(…, gradient_accumulation_steps={accumulate})` and batches of "
        "{batch}",
        with_settings(accumulate),
        Time(None, f"smaller kernels use a GPU less well; {UNMEASURED}"),
        "batch norm sees the smaller batch; Keras 3 fails with it under a strategy (keras #20582)",
    ),
    Fix(
        "xla",
        "Let XLA compile the step",
        "`model.compile(…, jit_compile=True)`, or `tf.function(step, jit_compile=True)`",
        when(lambda _: True, lambda plan: replace(plan, xla=True)),
        Time(None, UNMEASURED),
        "",
        "XLA fuses operations, which mostly needs less, but lays memory out by itself, recomputes "
        "as it likes and needs scratch memory to tune kernels: it can need more, so try it",
        treatment=KERAS_JIT,
    ),
    SMALLER_BATCH,
    Fix(
        "sgd",
        "An optimizer without states",
        "keras.optimizers.SGD(…)",
        with_settings(sgd),
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
        treatment=TF_MEMORY_GROWTH,
    ),
)

FIXES: Mapping[Framework, tuple[Fix, ...]] = {
    Framework.TORCH: _TORCH,
    Framework.TENSORFLOW: _TENSORFLOW,
}
"""The fixes of each framework, from what costs nothing to what changes the training."""


def known_fixes(plan: Plan) -> tuple[Fix, ...]:
    """The fixes for the plan's framework, from what costs nothing to what changes the training."""
    return FIXES[plan.framework]


def wanted_traces(plan: Plan) -> tuple[Settings, ...]:
    """The settings worth tracing besides the plan's own, the most useful first.

    First another batch, from which all batches follow, then what the fixes need. Two micro-batches
    stand for any number of them. What is not traced is predicted by formula if one exists.
    """
    own = plan.settings
    wanted = [replace(own, batch=own.batch // 2 if own.batch > 1 else 2)]
    for fix in known_fixes(plan):
        for variant in fix.variants(plan):
            settings = variant.settings
            if (settings.batch, settings.accumulate) == (own.batch, own.accumulate):
                wanted.append(settings)
    short = (replace(each, accumulate=min(2, own.accumulate)) for each in wanted if each != own)
    return tuple(dict.fromkeys(short))
