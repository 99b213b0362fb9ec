"""Treatments of what the host does besides: garbage collection, threads, cores, checkpoints."""

from __future__ import annotations

from mgpu_doctor.advice.treatment import Effect, Situation, Treatment, Value
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


TREATMENTS = (
    Treatment(
        name="gc-freeze",
        summary="Exclude the objects that exist after five steps from garbage collection",
        framework=None,
        lines="gc.collect(); gc.freeze()  # once, before the training loop",
        needs="Nothing.",
        propose=lambda job: _collecting(True, job),
        switches=True,
        fixes=("gc-freeze",),
        codes=("gc-pauses",),
    ),
    Treatment(
        name="gc-together",
        summary="Collect only young garbage, every few updates, on all ranks at once",
        framework="torch",
        lines="gc.disable()  # before the loop; in it: if step % {value} == 0: gc.collect(1)",
        needs="Memory for garbage in reference cycles, which lives longer.",
        propose=lambda job: _collecting(COLLECT_EVERY, job),
        switches=True,
        fixes=("gc-together",),
        codes=("gc-pauses",),
        least=10,
        most=100_000,
    ),
    Treatment(
        name="threads",
        summary="Give each rank as many computing threads as it has cores",
        framework=None,
        effect=Effect.ROUNDING,
        lines="OMP_NUM_THREADS={value}",
        needs="The script does not set the number of threads itself.",
        propose=_threads,
        fixes=("fewer-threads",),
        codes=("cpu-oversubscribed", "straggler-host"),
        least=1,
        most=1024,
        variable="OMP_NUM_THREADS",
    ),
    Treatment(
        name="rank-cores",
        summary="Give each rank cores of its own",
        framework="torch",
        lines="os.sched_setaffinity(0, cores)  # by LOCAL_RANK, before init_process_group",
        needs="A launcher that sets LOCAL_RANK and LOCAL_WORLD_SIZE, and a core for each rank.",
        propose=_rank_cores,
    ),
    Treatment(
        name="checkpoint-in-background",
        summary="Copy what torch.save saves, and write it while training continues",
        framework="torch",
        lines="pending = dcp.async_save(...)  # torch.distributed.checkpoint",
        needs="Memory for one copy of what is saved, and saving to a path.",
        propose=_checkpoint,
        fixes=("save-in-background",),
        codes=("checkpoint-stall",),
    ),
    Treatment(
        name="expandable-segments",
        summary="Let the allocator of GPU memory grow its segments",
        framework="torch",
        lines="PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        needs="The script and the environment set no other allocator options.",
        propose=lambda _: True,
        needs_gpu=True,
        variable="PYTORCH_CUDA_ALLOC_CONF",
        setting="expandable_segments:True",
        fixes=("expandable-segments",),
        codes=("oom-fragmentation", "oom-risk"),
    ),
)
