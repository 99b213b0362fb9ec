"""Treatments of the input: data loaders of torch, and tf.data."""

from __future__ import annotations

from mgpu_doctor.advice.treatment import (
    Effect,
    Remedy,
    Situation,
    TensorflowTreatment,
    TorchTreatment,
    Value,
)

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


def _tf_cache(job: Situation) -> Value | str:
    if not job.metadata.pipelines:
        return "no tf.data pipeline was seen"
    if all(pipeline.cached for pipeline in job.metadata.pipelines):
        return "its pipeline is cached already"
    return True


SLOW_INPUT = Remedy("load-in-background", ("input-bound", "straggler-input"))

TREATMENTS = (
    TorchTreatment(
        "loader-workers",
        "Load batches in worker processes of the data loader, and keep these",
        "The dataset is map-style and can be used in another process. Random numbers that it draws "
        "differ.",
        _workers,
        lines="DataLoader(..., num_workers={value}, persistent_workers=True)",
        applies=SLOW_INPUT,
        values=range(1, 65),
    ),
    TorchTreatment(
        "loader-prefetch",
        "Prepare more batches in advance",
        "The data loader has workers. Each holds more batches in memory.",
        _prefetch,
        lines="DataLoader(..., prefetch_factor={value})",
        applies=SLOW_INPUT,
        values=range(1, 65),
    ),
    TorchTreatment(
        "loader-persistent",
        "Keep the workers of the data loader between epochs",
        "The data loader has workers, and an epoch ends within the trial.",
        _persistent,
        lines="DataLoader(..., persistent_workers=True)",
    ),
    TorchTreatment(
        "loader-pin-memory",
        "Let the data loader put batches into pinned memory",
        "The script copies batches with non_blocking=True.",
        _pin_memory,
        lines="DataLoader(..., pin_memory=True), and batch.to(device, non_blocking=True)",
        needs_gpu=True,
    ),
    TensorflowTreatment(
        "tf-prefetch",
        "Prepare batches of tf.data while the step before computes",
        "The script iterates over a tf.data.Dataset, or gives one to fit.",
        _tf_prefetch,
        lines="dataset = dataset.prefetch(tf.data.AUTOTUNE)",
        applies=SLOW_INPUT,
    ),
    TensorflowTreatment(
        "tf-parallel-map",
        "Let the maps of tf.data work on several elements at once",
        "The mapped functions can run at the same time. Random numbers that they draw differ.",
        _tf_parallel_map,
        lines="dataset.map(..., num_parallel_calls={value})",
        applies=SLOW_INPUT,
        values=range(2, 257),
    ),
    TensorflowTreatment(
        "tf-cache",
        "Keep what the first map of a tf.data pipeline makes in memory, for later epochs",
        "The mapped function draws no random numbers, its results fit into memory, and an epoch "
        "ends within the trial.",
        _tf_cache,
        lines="dataset.map(...).cache()",
        effect=Effect.CONVERGENCE,
        applies=SLOW_INPUT,
    ),
)
