"""Treatments of the exchange between ranks: DistributedDataParallel and FSDP."""

from __future__ import annotations

from mgpu_doctor.advice.treatment import DDP, FSDP, Effect, Situation, Treatment, Value

MIB = 1 << 20
DEFAULT_CAP, LARGE_CAP = 25, 100
"""MiB. torch's default size of a bucket; one for models whose buckets are many."""


def _no_search(job: Situation) -> Value | str:
    ddp = job.metadata.ddp
    if ddp is None or not ddp.find_unused:
        return "it does not search for unused parameters"
    if ddp.unused_bytes or ddp.graph_varies:
        return "some parameters are unused in some passes"
    return True


def _bucket_view(job: Situation) -> Value | str:
    ddp = job.metadata.ddp
    return "gradients are views of buckets already" if ddp and ddp.bucket_view else True


def _static_graph(job: Situation) -> Value | str:
    ddp = job.metadata.ddp
    if ddp is not None and (ddp.graph_varies or ddp.unused_bytes):
        return "its graph varies, or has unused parameters"
    return "its graph is static already" if ddp and ddp.static_graph else True


def _bucket_size(job: Situation) -> Value | str:
    ddp = job.metadata.ddp
    if ddp is None or not ddp.parameter_bytes or ddp.bucket_cap_bytes is None:
        return "the size of its gradients is unknown"
    if ddp.bucket_cap_bytes > DEFAULT_CAP * MIB and ddp.parameter_bytes > DEFAULT_CAP * MIB:
        return DEFAULT_CAP
    if ddp.parameter_bytes > 2 * DEFAULT_CAP * MIB:
        return LARGE_CAP
    return "its gradients fit into one or two buckets"


def _no_sync(job: Situation) -> Value | str:
    ddp, passes = job.metadata.ddp, job.micro_batches
    if ddp is None or passes is None or passes < 2:
        return "it does not accumulate gradients"
    if not ddp.forwards or ddp.synced is None or ddp.synced * passes < 1.5 * ddp.forwards:
        return "it exchanges gradients once per update already"
    return passes


def _compress(job: Situation) -> Value | str:
    ddp = job.metadata.ddp
    return "it has a communication hook" if ddp is not None and ddp.comm_hook else True


TREATMENTS = (
    Treatment(
        name="ddp-no-search",
        summary="Do not search for unused parameters",
        framework="torch",
        strategies=DDP,
        lines="DistributedDataParallel(..., find_unused_parameters=False)",
        needs="Every parameter is used in every pass; otherwise the job fails.",
        propose=_no_search,
        fixes=("no-search",),
        codes=("unused-parameter-scan",),
    ),
    Treatment(
        name="ddp-bucket-view",
        summary="Let gradients be views of the communication buckets instead of copies",
        framework="torch",
        strategies=DDP,
        lines="DistributedDataParallel(..., gradient_as_bucket_view=True)",
        needs="The script does not detach gradients in place.",
        propose=_bucket_view,
    ),
    Treatment(
        name="ddp-static-graph",
        summary="Declare the graph of DistributedDataParallel static",
        framework="torch",
        strategies=DDP,
        lines="DistributedDataParallel(..., static_graph=True)",
        needs="The same parameters are used in every pass.",
        propose=_static_graph,
    ),
    Treatment(
        name="ddp-bucket-size",
        summary="Exchange gradients in buckets of another size",
        framework="torch",
        strategies=DDP,
        effect=Effect.ROUNDING,
        lines="DistributedDataParallel(..., bucket_cap_mb={value})",
        needs="DistributedDataParallel.",
        propose=_bucket_size,
        fixes=("smaller-buckets",),
        codes=("overlap-poor",),
        least=1,
        most=10_000,
    ),
    Treatment(
        name="ddp-no-sync",
        summary="Exchange gradients only in the last micro-batch of an update",
        framework="torch",
        strategies=DDP,
        effect=Effect.ROUNDING,
        lines="with model.no_sync(): around forward and backward of all but the last of {value} "
        "micro-batches",
        needs="One such module, and as many micro-batches in every update.",
        propose=_no_sync,
        switches=True,
        fixes=("no-sync",),
        codes=("accumulation-syncs",),
        least=2,
        most=1024,
    ),
    Treatment(
        name="ddp-local-buffers",
        summary="Do not copy the buffers of rank 0 to all ranks before each pass",
        framework="torch",
        strategies=DDP,
        effect=Effect.CONVERGENCE,
        lines="DistributedDataParallel(..., broadcast_buffers=False)",
        needs="Buffers that need not be equal, such as running means: those of rank 0 are saved.",
        propose=lambda _: True,
        waits_to_be_named=True,
    ),
    Treatment(
        name="ddp-compress-bf16",
        summary="Exchange gradients in bfloat16",
        framework="torch",
        strategies=DDP,
        effect=Effect.CONVERGENCE,
        lines="model.register_comm_hook(None, default_hooks.bf16_compress_hook)",
        needs="No communication hook of the script's own, and NCCL.",
        propose=_compress,
        needs_gpu=True,
        fixes=("compress",),
        codes=("communication-bound",),
        waits_to_be_named=True,
        excludes=frozenset({"ddp-compress-fp16", "ddp-power-sgd"}),
    ),
    Treatment(
        name="ddp-compress-fp16",
        summary="Exchange gradients in float16",
        framework="torch",
        strategies=DDP,
        effect=Effect.CONVERGENCE,
        lines="model.register_comm_hook(None, default_hooks.fp16_compress_hook)",
        needs="No communication hook of the script's own, and gradients within the range of "
        "float16.",
        propose=_compress,
        fixes=("compress",),
        codes=("communication-bound",),
        waits_to_be_named=True,
        excludes=frozenset({"ddp-compress-bf16", "ddp-power-sgd"}),
    ),
    Treatment(
        name="ddp-power-sgd",
        summary="Exchange matrices of low rank instead of gradients",
        framework="torch",
        strategies=DDP,
        effect=Effect.CONVERGENCE,
        lines="model.register_comm_hook(PowerSGDState(None, matrix_approximation_rank={value}, "
        "start_powerSGD_iter=10), powerSGD_hook)",
        needs="No communication hook of the script's own. Compare the loss of whole runs.",
        propose=lambda job: 2 if (fits := _compress(job)) is True else fits,
        least=1,
        most=64,
        waits_to_be_named=True,
        excludes=frozenset({"ddp-compress-bf16", "ddp-compress-fp16"}),
    ),
    Treatment(
        name="fsdp-keep-gathered",
        summary="Keep the gathered parameters from forward until backward",
        framework="torch",
        strategies=FSDP,
        lines="fully_shard(..., reshard_after_forward=False)",
        needs="Memory for all parameters at once on each rank.",
        propose=lambda _: True,
    ),
)
