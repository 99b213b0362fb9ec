"""Treatments of the exchange between ranks: DistributedDataParallel and FSDP."""

from __future__ import annotations

from mgpu_doctor.advice.treatment import (
    DdpTreatment,
    Effect,
    FsdpTreatment,
    Remedy,
    Situation,
    TensorflowTreatment,
    TorchTreatment,
    Value,
)

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


def _with_backend(name: str, value: Value, job: Situation) -> Value | str:
    return value if name in (job.metadata.backend or "") else f"its ranks do not use {name}"


HOOK = "communication hook"
EXCHANGES_LONG = Remedy("compress", ("communication-bound",))

DDP_BUCKET_VIEW = DdpTreatment(
    "ddp-bucket-view",
    "Let gradients be views of the communication buckets instead of copies",
    "The script does not detach gradients in place.",
    _bucket_view,
    lines="DistributedDataParallel(..., gradient_as_bucket_view=True)",
)

TREATMENTS = (
    DdpTreatment(
        "ddp-no-search",
        "Do not search for unused parameters",
        "Every parameter is used in every pass; otherwise the job fails.",
        _no_search,
        lines="DistributedDataParallel(..., find_unused_parameters=False)",
        applies=Remedy("no-search", ("unused-parameter-scan",)),
    ),
    DDP_BUCKET_VIEW,
    DdpTreatment(
        "ddp-static-graph",
        "Declare the graph of DistributedDataParallel static",
        "The same parameters are used in every pass.",
        _static_graph,
        lines="DistributedDataParallel(..., static_graph=True)",
    ),
    DdpTreatment(
        "ddp-bucket-size",
        "Exchange gradients in buckets of another size",
        "DistributedDataParallel.",
        _bucket_size,
        lines="DistributedDataParallel(..., bucket_cap_mb={value})",
        effect=Effect.ROUNDING,
        applies=Remedy("smaller-buckets", ("overlap-poor",)),
        values=range(1, 10_001),
    ),
    DdpTreatment(
        "ddp-no-sync",
        "Exchange gradients only in the last micro-batch of an update",
        "One such module, and as many micro-batches in every update.",
        _no_sync,
        lines="with model.no_sync(): around forward and backward of all but the last of {value} "
        "micro-batches",
        effect=Effect.ROUNDING,
        applies=Remedy("no-sync", ("accumulation-syncs",)),
        values=range(2, 1025),
        switches=True,
    ),
    DdpTreatment(
        "ddp-local-buffers",
        "Do not copy the buffers of rank 0 to all ranks before each pass",
        "Buffers that need not be equal, such as running means: those of rank 0 are saved.",
        lines="DistributedDataParallel(..., broadcast_buffers=False)",
        effect=Effect.CONVERGENCE,
    ),
    DdpTreatment(
        "ddp-compress-bf16",
        "Exchange gradients in bfloat16",
        "No communication hook of the script's own, and NCCL.",
        _compress,
        lines="model.register_comm_hook(None, default_hooks.bf16_compress_hook)",
        effect=Effect.CONVERGENCE,
        applies=EXCHANGES_LONG,
        needs_gpu=True,
        slot=HOOK,
    ),
    DdpTreatment(
        "ddp-compress-fp16",
        "Exchange gradients in float16",
        "No communication hook of the script's own, and gradients within the range of float16.",
        _compress,
        lines="model.register_comm_hook(None, default_hooks.fp16_compress_hook)",
        effect=Effect.CONVERGENCE,
        applies=EXCHANGES_LONG,
        slot=HOOK,
    ),
    DdpTreatment(
        "ddp-power-sgd",
        "Exchange matrices of low rank instead of gradients",
        "No communication hook of the script's own. Compare the loss of whole runs.",
        lambda job: 2 if (fits := _compress(job)) is True else fits,
        lines="model.register_comm_hook(PowerSGDState(None, matrix_approximation_rank={value}, "
        "start_powerSGD_iter=10), powerSGD_hook)",
        effect=Effect.CONVERGENCE,
        values=range(1, 65),
        slot=HOOK,
    ),
    FsdpTreatment(
        "fsdp-keep-gathered",
        "Keep the gathered parameters from forward until backward",
        "Memory for all parameters at once on each rank.",
        lines="fully_shard(..., reshard_after_forward=False)",
    ),
    FsdpTreatment(
        "fsdp-prefetch",
        "Gather the parameters of more blocks in advance",
        "Three or more blocks with fully_shard, used in the order in which they were made. Memory "
        "for the parameters of these blocks.",
        lambda _: 2,
        lines="block.set_modules_to_forward_prefetch(the next {value} blocks) and "
        "block.set_modules_to_backward_prefetch(the {value} before), for each block",
        values=range(1, 17),
        needs_gpu=True,
    ),
    TorchTreatment(
        "gloo-threads",
        "Let gloo work on more exchanges at once",
        "Several exchanges at once, over links that are slow to answer.",
        lambda job: _with_backend("gloo", 8, job),
        lines="options = ProcessGroupGloo._Options(); options._threads = {value}  # private to "
        "torch: prefer run --treat",
        values=range(1, 65),
        only_by_name=True,
    ),
    TorchTreatment(
        "nccl-high-priority",
        "Let kernels of NCCL start before others that wait",
        "NCCL, and exchanges that overlap with computing.",
        lambda job: _with_backend("nccl", True, job),
        environment={"TORCH_NCCL_HIGH_PRIORITY": "1"},
        needs_gpu=True,
    ),
    TorchTreatment(
        "nccl-socket-threads",
        "Let NCCL use more threads for each connection over TCP",
        "NCCL between hosts without RDMA, and cores for these threads.",
        lambda job: _with_backend("nccl", 4, job),
        environment={"NCCL_SOCKET_NTHREADS": "{value}"},
        values=range(1, 17),
        needs_gpu=True,
        only_by_name=True,
    ),
    TensorflowTreatment(
        "tf-pack-size",
        "Let workers of TensorFlow exchange gradients in packs of this many MiB",
        "The script gives the strategy no communication_options.",
        lambda _: 32,
        lines="tf.distribute.MultiWorkerMirroredStrategy(communication_options="
        "tf.distribute.experimental.CommunicationOptions(bytes_per_pack={value} << 20))",
        strategies=frozenset({"multiworker"}),
        effect=Effect.ROUNDING,
        values=range(1, 1025),
    ),
    TensorflowTreatment(
        "tf-hierarchical-copy",
        "Let replicas of TensorFlow sum gradients by copies along the links between GPUs",
        "The script gives the strategy no cross_device_ops. Made for hosts of 8 GPUs.",
        lines="tf.distribute.MirroredStrategy(cross_device_ops="
        "tf.distribute.HierarchicalCopyAllReduce())",
        strategies=frozenset({"mirrored"}),
        effect=Effect.ROUNDING,
        needs_gpu=True,
    ),
)
