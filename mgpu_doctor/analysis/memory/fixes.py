"""The fixes that are known, from what costs nothing to what changes the training.

A fix turns a plan into milder and stronger ones; what it saves is predicted like any other plan, so
that every phase's peak is found anew and none is sold that leaves the peak where it was.
"""

from __future__ import annotations

from dataclasses import replace

from mgpu_doctor.analysis.memory.fix import SMALLER_BATCH, UNMEASURED, Fix, Time
from mgpu_doctor.analysis.memory.settings import (
    Checkpointing,
    Framework,
    Plan,
    Settings,
    Strategy,
)
from mgpu_doctor.analysis.memory.tffixes import IN_TENSORFLOW
from mgpu_doctor.analysis.memory.variants import (
    REPLICATED,
    accumulate,
    adam,
    bf16,
    checkpointing,
    sgd,
    strategy,
    traced,
    where,
)

FREE = "the same kernels run"

FIXES = (
    Fix(
        "bucket-view",
        "Let the gradients live in DDP's buckets",
        "DistributedDataParallel(model, gradient_as_bucket_view=True)",
        where(
            lambda plan: plan.strategy in REPLICATED, lambda plan: replace(plan, bucket_view=True)
        ),
        Time(0.0, "one copy of each gradient less"),
        "gradients must not be detached in place (detach_)",
    ),
    Fix(
        "fused-optimizer",
        "Update the weights in one kernel",
        "torch.optim.AdamW(model.parameters(), fused=True, …); Adam and SGD have it, too",
        where(
            lambda plan: not (plan.offload_optimizer or plan.eight_bit_states),
            lambda plan: replace(plan, fused_optimizer=True),
        ),
        Time(0.0, "fewer passes over memory"),
    ),
    Fix(
        "expandable-segments",
        "Let the allocator's segments grow",
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        where(lambda _: True, lambda plan: replace(plan, expandable=True)),
        Time(0.0, f"{FREE}; memory is mapped while it grows"),
        "the simulation of it is not validated; such memory cannot be shared between processes",
    ),
    Fix(
        "chunked-loss",
        "Compute the cross-entropy in parts",
        "compute head and loss for an eighth of the tokens at a time, under "
        "torch.utils.checkpoint, or use a fused linear cross-entropy",
        where(lambda _: True, lambda plan: replace(plan, chunked_loss=True)),
        Time(None, "the output layer may run twice in backward; not measured"),
    ),
    Fix(
        "bf16",
        "Train in mixed precision (bf16)",
        'with torch.autocast("cuda", dtype=torch.bfloat16): around forward and loss',
        traced(bf16),
        Time(None, "mostly faster on GPUs with tensor cores; not measured"),
        "weights and optimizer states stay fp32, and short copies of the weights are kept: small "
        "batches can need more memory than before",
    ),
    Fix(
        "zero1",
        "Divide the optimizer states among the ranks (ZeRO-1)",
        "torch.distributed.optim.ZeroRedundancyOptimizer(model.parameters(), optimizer_class=…)",
        strategy(Strategy.ZERO1, {Strategy.DDP}),
        Time(None, "each rank sends its updated weights to all others; depends on the network"),
    ),
    Fix(
        "checkpoint-half",
        "Keep the activations of every second layer only",
        "torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False) for every second layer",
        traced(checkpointing(Checkpointing.HALF)),
        Time(1 / 6, "at most: half of one more forward pass"),
    ),
    Fix(
        "checkpoint-full",
        "Keep no layer's activations, but compute them again in backward",
        "torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False) for every layer",
        traced(checkpointing(Checkpointing.FULL)),
        Time(1 / 3, "at most: one more forward pass"),
    ),
    Fix(
        "accumulate",
        "Smaller micro-batches, and more of them before an update",
        "call optimizer.step() once in {accumulate} batches of {batch} (under DDP, with "
        "model.no_sync() for all but the last), and divide the loss by {accumulate}",
        traced(accumulate),
        Time(None, f"smaller kernels use a GPU less well; {UNMEASURED}"),
        "batch norm sees the smaller batch",
    ),
    Fix(
        "fsdp",
        "Divide weights, gradients and optimizer states among the ranks",
        "torch.distributed.fsdp.fully_shard(layer) for every layer, then fully_shard(model)",
        strategy(Strategy.FSDP, {Strategy.SINGLE, Strategy.DDP, Strategy.ZERO1}),
        Time(
            None, "1.5 times the bytes of DDP are sent (arXiv 1910.02054); depends on the network"
        ),
    ),
    Fix(
        "offload-optimizer",
        "Keep the optimizer states on the host and update there",
        "DeepSpeed with offload_optimizer, or torchao's CPUOffloadOptimizer",
        where(
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
        where(adam, lambda plan: replace(plan, eight_bit_states=True)),
        Time(None, UNMEASURED),
        "changes the training: watch the loss",
    ),
    SMALLER_BATCH,
    Fix(
        "sgd",
        "An optimizer without states",
        "torch.optim.SGD(model.parameters(), …)",
        traced(sgd),
        Time(0.0, "the update is smaller"),
        "changes the training: most transformers do not learn well with it",
    ),
    Fix(
        "empty-cache",
        "Clear the allocator's cache",
        "torch.cuda.empty_cache()",
        lambda plan: (plan,),
        Time(None, "what was cached is allocated anew"),
        "it saves nothing: before it fails, the allocator clears its cache by itself; only other "
        "programs on the device gain",
    ),
)


def known_fixes(plan: Plan) -> tuple[Fix, ...]:
    """Those of the plan's framework."""
    return IN_TENSORFLOW if plan.framework is Framework.TENSORFLOW else FIXES


def wanted_traces(plan: Plan) -> tuple[Settings, ...]:
    """What is worth tracing beside the plan's own settings, the most useful first: another batch
    (which tells of all batches), then what the fixes need. Of several micro-batches two tell of
    all. Whatever is missing is predicted by formula where there is one, else not at all."""
    own = plan.settings
    found = [replace(own, batch=own.batch // 2 if own.batch > 1 else 2)]
    for fix in known_fixes(plan):
        for variant in fix.variants(plan):
            settings = variant.settings
            if (settings.batch, settings.accumulate) == (own.batch, own.accumulate):
                found.append(settings)
    short = (replace(each, accumulate=min(2, own.accumulate)) for each in found if each != own)
    return tuple(dict.fromkeys(short))
