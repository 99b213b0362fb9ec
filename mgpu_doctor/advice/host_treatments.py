"""Treatments of what the host does besides: garbage collection, threads, cores, checkpoints."""

from __future__ import annotations

from mgpu_doctor.advice.treatment import (
    Effect,
    Remedy,
    Situation,
    TensorflowTreatment,
    TorchTreatment,
    Treatment,
    Value,
)
from mgpu_doctor.formatting import format_share

COLLECTING_COSTS = 0.005
"""Share of the time in garbage collections from which treating them is proposed. A choice: less
gain could not be shown by short trials."""
COLLECT_EVERY = 500


def _collecting(value: Value, job: Situation) -> Value | str:
    share = job.garbage_share
    if share is None or share < COLLECTING_COSTS:
        return f"garbage collection takes {format_share(share)} of the time"
    return value


def _threads(job: Situation) -> Value | str:
    if job.cores is None or job.metadata.threads is None:
        return "the number of its cores or threads is unknown"
    fitting = max(1, int(job.cores))
    return f"each rank has {fitting} already" if job.metadata.threads == fitting else fitting


def _rank_cores(job: Situation) -> Value | str:
    if job.cores is None or job.metadata.local_world_size in (None, 1):
        return "it has one rank on each host, or its cores are unknown"
    return True if job.cores >= 1 else "there are fewer cores than ranks"


def _checkpoint(job: Situation) -> Value | str:
    return True if job.saves else "no checkpoint was saved in the measured steps"


def _interop_threads(job: Situation) -> Value | str:
    if job.cores is None or job.metadata.interop_threads is None:
        return "the number of its cores or threads is unknown"
    fitting = max(1, int(job.cores))
    return fitting if job.metadata.interop_threads > fitting else "it has no more than cores"


def _keep_memory(job: Situation) -> Value | str:
    if not (job.metadata.device or "cpu").startswith("cpu"):
        return "it computes on a GPU"
    return True


def _tf_threads(job: Situation) -> Value | str:
    """TensorFlow's own choice, which reads as unknown, is a thread for each core of the host."""
    now = job.metadata.threads or job.metadata.affinity
    if job.cores is None or now is None:
        return "the number of its cores or threads is unknown"
    fitting = max(1, int(job.cores))
    return f"each worker has {fitting} already" if now == fitting else fitting


CORES = "cores of the rank"
OWN_ALLOCATOR = "The script and the environment set no other allocator options."
OVERSUBSCRIBED = Remedy("fewer-threads", ("cpu-oversubscribed", "straggler-host"))
ALLOCATOR = "settings of the GPU allocator"

EXPANDABLE_SEGMENTS = TorchTreatment(
    "expandable-segments",
    "Let the allocator of GPU memory grow its segments",
    OWN_ALLOCATOR,
    environment={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
    applies=Remedy("expandable-segments", ("oom-fragmentation", "oom-risk")),
    needs_gpu=True,
    slot=ALLOCATOR,
)
TF_MEMORY_GROWTH = TensorflowTreatment(
    "tf-memory-growth",
    "Let TensorFlow take GPU memory as it needs it, instead of nearly all at the start",
    "Nothing. Memory may fragment more.",
    environment={"TF_FORCE_GPU_ALLOW_GROWTH": "true"},
    applies=Remedy("memory-growth", ("memory-preallocated",)),
    needs_gpu=True,
    only_by_name=True,
)

TREATMENTS = (
    Treatment(
        "gc-freeze",
        "Exclude the objects that exist after five steps from garbage collection",
        "Nothing.",
        lambda job: _collecting(True, job),
        lines="gc.collect(); gc.freeze()  # once, before the training loop",
        applies=Remedy("gc-freeze", ("gc-pauses",)),
        switches=True,
    ),
    TorchTreatment(
        "gc-together",
        "Collect only young garbage, every few updates, on all ranks at once",
        "Memory for garbage in reference cycles, which lives longer.",
        lambda job: _collecting(COLLECT_EVERY, job),
        lines="gc.disable()  # before the loop; in it: if step % {value} == 0: gc.collect(1)",
        applies=Remedy("gc-together", ("gc-pauses",)),
        values=range(10, 100_001),
        switches=True,
    ),
    Treatment(
        "threads",
        "Give each rank as many computing threads as it has cores",
        "The script does not set the number of threads itself.",
        _threads,
        environment={"OMP_NUM_THREADS": "{value}"},
        effect=Effect.ROUNDING,
        applies=OVERSUBSCRIBED,
        values=range(1, 1025),
    ),
    TorchTreatment(
        "interop-threads",
        "Let torch run no more independent operations at once than the rank has cores",
        "Operations that run at once, such as torch.jit.fork, which few scripts use.",
        _interop_threads,
        lines="torch.set_num_interop_threads({value})  # at the start",
        values=range(1, 1025),
        only_by_name=True,
    ),
    TensorflowTreatment(
        "tf-threads",
        "Give each worker of TensorFlow as many computing threads as it has cores",
        "The script does not set the number of threads itself.",
        _tf_threads,
        environment={"TF_NUM_INTRAOP_THREADS": "{value}", "TF_NUM_INTEROP_THREADS": "{value}"},
        effect=Effect.ROUNDING,
        applies=OVERSUBSCRIBED,
        values=range(1, 1025),
    ),
    TorchTreatment(
        "rank-cores",
        "Give each rank cores of its own",
        "A launcher that sets LOCAL_RANK and LOCAL_WORLD_SIZE, and a core for each rank.",
        _rank_cores,
        lines="os.sched_setaffinity(0, cores)  # by LOCAL_RANK, before init_process_group",
        slot=CORES,
    ),
    TorchTreatment(
        "gpu-cores",
        "Let each rank run only on the cores near its GPU",
        "A launcher that sets LOCAL_RANK, NVIDIA's driver, and a host with several NUMA nodes.",
        lines="numactl --cpunodebind=NODE --membind=NODE  # NODE: as `nvidia-smi topo -m` shows",
        applies=Remedy("bind-cores", ("numa-misplaced",)),
        needs_gpu=True,
        slot=CORES,
    ),
    Treatment(
        "keep-host-memory",
        "Let the C library keep freed memory for the next step, instead of giving it back",
        "glibc's own allocator. The process keeps the most memory that it has used.",
        _keep_memory,
        environment={"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "17179869184"},
        applies=Remedy("keep-memory", ("straggler-host",)),
    ),
    TorchTreatment(
        "checkpoint-in-background",
        "Copy what torch.save saves, and write it while training continues",
        "Memory for one copy of what is saved, and saving to a path.",
        _checkpoint,
        lines="pending = dcp.async_save(...)  # torch.distributed.checkpoint",
        applies=Remedy("save-in-background", ("checkpoint-stall",)),
    ),
    EXPANDABLE_SEGMENTS,
    TorchTreatment(
        "allocator-split-size",
        "Let the allocator of GPU memory split no blocks larger than this many MB",
        OWN_ALLOCATOR,
        lambda _: 128,
        environment={"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:{value}"},
        values=range(21, 100_001),
        needs_gpu=True,
        only_by_name=True,
        slot=ALLOCATOR,
    ),
    TorchTreatment(
        "pinned-memory-threads",
        "Let a thread watch when pinned memory can be used again",
        OWN_ALLOCATOR,
        environment={"PYTORCH_CUDA_ALLOC_CONF": "pinned_use_background_threads:True"},
        needs_gpu=True,
        only_by_name=True,
        slot=ALLOCATOR,
    ),
    TF_MEMORY_GROWTH,
)
