"""Treatments of the input: data loaders of torch, and tf.data."""

from __future__ import annotations

from mgpu_doctor.advice.treatment import Situation, Treatment, Value

MOST_WORKERS = 4
"""Workers per rank that are proposed at most. A choice; try others by `--try loader-workers=N`."""


def _workers(job: Situation) -> Value | str:
    loader = job.metadata.loader
    if loader.workers is None:
        return "no data loader was seen"
    if loader.workers:
        return f"its loader has {loader.workers} workers already"
    if loader.dataset_length is None:
        return "its dataset is iterable: each worker would load the same samples"
    return int(min(MOST_WORKERS, max(1.0, job.cores or MOST_WORKERS)))


def _prefetch(job: Situation) -> Value | str:
    loader = job.metadata.loader
    return 2 * (loader.prefetch or 2) if loader.workers else "its loader has no workers"


def _persistent(job: Situation) -> Value | str:
    loader = job.metadata.loader
    if not loader.workers:
        return "its loader has no workers"
    return "its workers are persistent already" if loader.persistent else True


def _pin_memory(job: Situation) -> Value | str:
    if not job.metadata.loaders:
        return "no data loader was seen"
    return "its loader pins memory already" if job.metadata.loader.pinned else True


def _tf_prefetch(job: Situation) -> Value | str:
    if not job.metadata.pipelines:
        return "no tf.data pipeline was seen"
    if all(pipeline.prefetch for pipeline in job.metadata.pipelines):
        return "its pipeline prefetches already"
    return True


def _tf_parallel_map(job: Situation) -> Value | str:
    if not any(pipeline.parallel_calls == 1 for pipeline in job.metadata.pipelines):
        return "no map of tf.data that works on one element at a time was seen"
    return int(min(MOST_WORKERS, max(2.0, job.cores or MOST_WORKERS)))


TREATMENTS = (
    Treatment(
        name="loader-workers",
        summary="Load batches in worker processes of the data loader, and keep these",
        framework="torch",
        lines="DataLoader(..., num_workers={value}, persistent_workers=True)",
        needs="The dataset is map-style and can be used in another process. Random numbers that it "
        "draws differ.",
        propose=_workers,
        fixes=("load-in-background",),
        codes=("input-bound", "straggler-input"),
        least=1,
        most=64,
    ),
    Treatment(
        name="loader-prefetch",
        summary="Prepare more batches in advance",
        framework="torch",
        lines="DataLoader(..., prefetch_factor={value})",
        needs="The data loader has workers. Each holds more batches in memory.",
        propose=_prefetch,
        fixes=("load-in-background",),
        codes=("input-bound", "straggler-input"),
        least=1,
        most=64,
    ),
    Treatment(
        name="loader-persistent",
        summary="Keep the workers of the data loader between epochs",
        framework="torch",
        lines="DataLoader(..., persistent_workers=True)",
        needs="The data loader has workers, and an epoch ends within the trial.",
        propose=_persistent,
    ),
    Treatment(
        name="loader-pin-memory",
        summary="Let the data loader put batches into pinned memory",
        framework="torch",
        lines="DataLoader(..., pin_memory=True), and batch.to(device, non_blocking=True)",
        needs="The script copies batches with non_blocking=True.",
        propose=_pin_memory,
        needs_gpu=True,
    ),
    Treatment(
        name="tf-prefetch",
        summary="Prepare batches of tf.data while the step before computes",
        framework="tensorflow",
        lines="dataset = dataset.prefetch(tf.data.AUTOTUNE)",
        needs="The script iterates over a tf.data.Dataset, or gives one to fit.",
        propose=_tf_prefetch,
        fixes=("load-in-background",),
        codes=("input-bound", "straggler-input"),
    ),
    Treatment(
        name="tf-parallel-map",
        summary="Let the maps of tf.data work on several elements at once",
        framework="tensorflow",
        lines="dataset.map(..., num_parallel_calls={value})",
        needs="The mapped functions can run at the same time. Random numbers that they draw "
        "differ.",
        propose=_tf_parallel_map,
        fixes=("load-in-background",),
        codes=("input-bound", "straggler-input"),
        least=2,
        most=256,
    ),
)
