"""What DistributedDataParallel raises, and what a wrong use of it leads to."""

from __future__ import annotations

from mgpu_doctor.signatures.signature import Role, Signature

_SAME_MODEL = (
    "Build the same model on every rank: the same arguments, no choice by rank, the same "
    "checkpoint, the same number of classes from the data."
)

SIGNATURES: tuple[Signature, ...] = (
    Signature(
        id="ddp-unused-parameters",
        code="failed-unused-parameters",
        role=Role.CAUSE,
        needle="has parameters that were not used in producing loss",
        pattern=r"Expected to have finished reduction in the prior iteration before starting a "
        r"new one\. This error indicates that your module has parameters that were not used in "
        r"producing loss",
        meaning="Some parameters got no gradient in a step, so DDP still waits for them in the "
        "next one.",
        fix="Freeze or remove them, or make every output take part in the loss; if they change "
        "from step to step: `DistributedDataParallel(..., find_unused_parameters=True)`. "
        "`TORCH_DISTRIBUTED_DEBUG=INFO` prints their names.",
        example="RuntimeError: Expected to have finished reduction in the prior iteration before "
        "starting a new one. This error indicates that your module has parameters that were not "
        "used in producing loss. You can enable unused parameter detection by passing the keyword "
        "argument `find_unused_parameters=True` to `torch.nn.parallel.DistributedDataParallel`, "
        "and by ",
        origin="made: a DDP model with a layer that its forward never calls, torch 2.13",
        more_heads=(
            "Expected to have finished reduction in the prior iter",
            "function outputs participate in calculating loss",
        ),
    ),
    Signature(
        id="ddp-unused-parameters-named",
        code="failed-unused-parameters",
        role=Role.CAUSE,
        needle="which did not receive grad for rank",
        pattern=r"Parameters which did not receive grad for rank (?P<rank>\d+): "
        r"(?P<parameters>.{1,300})",
        meaning="Parameters got no gradient ({parameters}), so DDP still waits for them.",
        fix="Use them in the loss, freeze them with `requires_grad_(False)` before DDP wraps the "
        "model, or set `find_unused_parameters=True`.",
        example="Parameters which did not receive grad for rank 0: b.bias, b.weight",
        origin="made: the same with TORCH_DISTRIBUTED_DEBUG=INFO, torch 2.13",
        weight=0.95,
    ),
    Signature(
        id="ddp-unused-parameters-numbered",
        code="failed-unused-parameters",
        role=Role.CAUSE,
        needle="Parameter indices which did not receive grad",
        pattern=r"Parameter indices which did not receive grad for rank (?P<rank>\d+): "
        r"(?P<indices>[\d .]{1,300})",
        meaning="Parameters number {indices} of the model got no gradient, so DDP still waits for "
        "them.",
        fix="Find the names with `[n for n, _ in model.named_parameters()]`, then use these "
        "parameters in the loss, freeze them before DDP wraps the model, or set "
        "`find_unused_parameters=True`.",
        example="Parameter indices which did not receive grad for rank 0: 2 3",
        origin="made: a DDP model with a layer that its forward never calls, torch 2.13",
        weight=0.85,
        more_heads=("Parameter indices which did not receive",),
    ),
    Signature(
        id="ddp-ready-twice",
        code="failed-reentrant-backward",
        role=Role.CAUSE,
        needle="Expected to mark a variable ready only once",
        pattern=r"Expected to mark a variable ready only once",
        meaning="DDP saw the gradient of one parameter twice in a step: reentrant activation "
        "checkpointing that is used twice or with `find_unused_parameters=True`, shared "
        "parameters, or two forward passes before one backward.",
        fix="Use `checkpoint(fn, x, use_reentrant=False)`; drop `find_unused_parameters=True`; if "
        "the graph never changes, set `static_graph=True`.",
        example="RuntimeError: Expected to mark a variable ready only once. This error is caused "
        "by one of the following reasons: 1) Use of a module parameter outside the `forward` "
        "function. Please make sure model parameters are not shared across multiple concurrent "
        "forward-backward passes. or try to use _set_static_graph() as a workaround if this "
        "module graph does not change during training loop.2) Reused parameters in multiple "
        "reentrant backward passes.",
        origin="made: reentrant checkpointing under DDP with find_unused_parameters, torch 2.13",
    ),
    Signature(
        id="ddp-ready-twice-named",
        code="failed-reentrant-backward",
        role=Role.CAUSE,
        needle="has been marked as ready twice",
        pattern=r"Parameter at index (?P<index>\d+)(?: with name (?P<parameter>[\w.]{1,200}?))? "
        r"has been marked as ready twice",
        meaning="The gradient of parameter {index} of the model was computed twice in one step.",
        fix="Use `checkpoint(fn, x, use_reentrant=False)` around the modules that use it, or set "
        "`static_graph=True`.",
        example="Parameter at index 1 with name a.bias has been marked as ready twice. This means "
        "that multiple autograd engine  hooks have fired for this particular parameter during "
        "this iteration.",
        origin="made: reentrant checkpointing under DDP with find_unused_parameters, torch 2.13",
        weight=0.85,
    ),
    Signature(
        id="ddp-graph-changed",
        code="failed-unused-parameters",
        role=Role.CAUSE,
        needle="training graph has changed in this iteration",
        pattern=r"[Yy]our training graph has changed in this iteration",
        meaning="DDP has `static_graph=True`, but another set of parameters took part in this step "
        "than in the first one.",
        fix="Drop `static_graph=True` (or `_set_static_graph()`), and use "
        "`find_unused_parameters=True` if parts of the model are really skipped in some steps.",
        example="RuntimeError: Your training graph has changed in this iteration, e.g., one "
        "parameter is unused in first iteration, but then got used in the second iteration. this "
        "is not compatible with static_graph set to True.",
        origin="made: a branch that is taken from the second step on, static_graph=True, torch "
        "2.13",
    ),
    Signature(
        id="ddp-model-differs-in-size",
        code="failed-shape-mismatch",
        role=Role.CAUSE,
        needle="appears not to match sizes of the same param in process",
        pattern=r"\[(?P<rank>\d+)\]: params\[(?P<index>\d+)\] in this process with sizes \["
        r"(?P<left>[\d, ]*)\] appears not to match sizes of the same param in process "
        r"(?P<other>\d+)",
        meaning="Parameter {index} is [{left}] on rank {rank} and has another size on rank "
        "{other}: the ranks built different models.",
        fix=_SAME_MODEL,
        example="RuntimeError: [1]: params[0] in this process with sizes [5, 4] appears not to "
        "match sizes of the same param in process 0.",
        origin="made: DDP of a layer whose width depends on the rank, torch 2.13",
        mutual=True,
    ),
    Signature(
        id="ddp-model-differs-in-number",
        code="failed-shape-mismatch",
        role=Role.CAUSE,
        needle="DDP expects same model across all ranks",
        pattern=r"DDP expects same model across all ranks, but Rank (?P<rank>\d+) has "
        r"(?P<own>\d+) params, while rank (?P<other>\d+) has inconsistent (?P<theirs>\d+) params",
        meaning="Rank {rank} built a model of {own} parameters, rank {other} one of {theirs}.",
        fix=_SAME_MODEL,
        example="RuntimeError: DDP expects same model across all ranks, but Rank 0 has 2 params, "
        "while rank 1 has inconsistent 4 params.",
        origin="made: DDP of one layer on rank 0 and of two on rank 1, torch 2.13",
        mutual=True,
    ),
    Signature(
        id="ddp-nothing-to-train",
        code="failed-exception",
        role=Role.CAUSE,
        needle="DistributedDataParallel is not needed when a module",
        pattern=r"DistributedDataParallel is not needed when a module doesn't have any parameter "
        r"that requires a gradient",
        meaning="All parameters of the module are frozen, so DDP has nothing to do.",
        fix="Wrap only modules that are trained, or unfreeze what should be trained before DDP.",
        example="RuntimeError: DistributedDataParallel is not needed when a module doesn't have "
        "any parameter that requires a gradient.",
        origin="made: DDP of a frozen layer, torch 2.13",
    ),
    Signature(
        id="ddp-device-ids",
        code="failed-device-mismatch",
        role=Role.CAUSE,
        needle="device_ids and output_device arguments only work with",
        pattern=r"DistributedDataParallel device_ids and output_device arguments only work with "
        r".{1,200}but got device_ids \[(?P<devices>[^\]]{0,80})\]",
        meaning="`device_ids=[{devices}]` was given for a module that lies on the CPU or on "
        "several devices.",
        fix="Move the model to its GPU first: `model.to(local_rank)`, then "
        "`DistributedDataParallel(model, device_ids=[local_rank])`; on CPUs leave `device_ids` "
        "out.",
        example="ValueError: DistributedDataParallel device_ids and output_device arguments only "
        "work with single-device/multiple-device GPU modules or CPU modules, but got device_ids "
        "[0], output_device None, and module parameters {device(type='cpu')}.",
        origin="made: DDP of a layer on the CPU with device_ids, torch 2.13",
    ),
    Signature(
        id="ddp-uninitialised-parameters",
        code="failed-exception",
        role=Role.CAUSE,
        needle="Modules with uninitialized parameters can't be used with",
        pattern=r"Modules with uninitialized parameters can't be used with `(?P<wrapper>[\w.]+)`",
        meaning="The model holds lazy layers whose size is not known yet.",
        fix="Run one batch through the model before `{wrapper}` wraps it.",
        example="RuntimeError: Modules with uninitialized parameters can't be used with "
        "`DistributedDataParallel`. Run a dummy forward pass to correctly initialize the modules",
        origin="made: DDP of a LazyLinear, torch 2.13",
    ),
    Signature(
        id="syncbn-on-cpu",
        code="failed-device-mismatch",
        role=Role.CAUSE,
        needle="SyncBatchNorm expected input tensor to be on",
        pattern=r"SyncBatchNorm expected input tensor to be on (?P<devices>[\w ]{2,60})",
        meaning="SyncBatchNorm works on accelerators only, and its input lies on the CPU.",
        fix="Move model and batch to the GPU, or leave `convert_sync_batchnorm` out on CPUs.",
        example="ValueError: SyncBatchNorm expected input tensor to be on GPU or XPU or "
        "privateuseone",
        origin="made: SyncBatchNorm on a CPU tensor, torch 2.13",
    ),
    Signature(
        id="ddp-bf16-hook",
        code="failed-exception",
        role=Role.CAUSE,
        needle="all reduce communication hook required CUDA",
        pattern=r"BF16 all reduce communication hook required CUDA",
        meaning="`bf16_compress_hook` needs CUDA and NCCL (or XPU and XCCL), and this job has "
        "neither.",
        fix="Leave the hook out, use `fp16_compress_hook`, or run on GPUs with NCCL.",
        example="TypeError: BF16 all reduce communication hook required CUDA 11+ and NCCL 2.10+ "
        "or XPU and XCCL",
        origin="made: register_comm_hook(bf16_compress_hook) with gloo, torch 2.13",
    ),
)
