"""A rank's birth certificate as typed facts. It is input from somebody else: what has not the
right type is None, lists are bounded. Keys and units: docs/black-box.md."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mgpu_doctor.case.files import Json, number, text, whole
from mgpu_doctor.case.model import Rank

MOST = 64
MOST_RANKS = 65_536


@dataclass(frozen=True, slots=True)
class Loader:
    """A data loader that was iterated while training."""

    workers: int | None = None
    prefetch: int | None = None
    persistent: bool | None = None
    pinned: bool | None = None
    batch_size: int | None = None
    sampler: str | None = None
    """Class of its sampler."""
    sampler_seed: int | None = None
    sampler_epoch: int | None = None
    """As the sampler's `set_epoch` last left it."""
    sampler_ranks: int | None = None
    """`num_replicas` of a distributed sampler."""
    sampler_rank: int | None = None
    shuffles: bool | None = None
    dataset_length: int | None = None
    batches: int | None = None
    """Of one epoch."""
    epochs: int | None = None
    """Times it was iterated."""


@dataclass(frozen=True, slots=True)
class Optimizer:
    """An optimizer that steps. Rates are of its first parameter group."""

    kind: str | None = None
    parameters: int | None = None
    dtype: str | None = None
    lr: float | None = None
    """At its first step."""
    lr_now: float | None = None
    lr_default: float | None = None
    """Of its class; None where it has none."""


@dataclass(frozen=True, slots=True)
class Ddp:
    """DistributedDataParallel: settings, and what its reducer has logged. Per backward pass."""

    find_unused: bool | None = None
    static_graph: bool | None = None
    bucket_cap_bytes: int | None = None
    bucket_view: bool | None = None
    """Whether gradients lie in the buckets, so that both are one memory."""
    parameter_bytes: int | None = None
    buckets: tuple[int, ...] = ()
    """Bytes of each, in the order in which they are reduced."""
    comm_hook: str | None = None
    unused_bytes: int | None = None
    """Of parameters that took no part in the last sampled backward pass."""
    graph_varies: bool | None = None
    """Whether the set of unused parameters has changed between any two backward passes."""
    forwards: int | None = None
    """Training forward passes so far."""
    synced: int | None = None
    """Those of them whose gradients were reduced (not under `no_sync`)."""
    scans: int | None = None
    scan_seconds: float | None = None
    """In all searches for unused parameters together."""
    backward_seconds: float | None = None
    communication_seconds: float | None = None
    overlap_seconds: float | None = None
    """Of the communication, while backward still computed."""


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Stages made by torch.distributed.pipelining."""

    micro_batches: int | None = None
    """Of one call of the schedule."""
    schedule: str | None = None
    """Its class."""
    held: int | None = None
    """Stages of this rank."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How long one of several takes for its part each time, lately. Seconds."""

    index: int
    count: int
    """How often so far."""
    newest: int
    """Times that the quartiles are of."""
    low: float
    middle: float
    high: float


@dataclass(frozen=True, slots=True)
class TfPipeline:
    """A tf.data pipeline that was iterated over."""

    prefetch: int | None
    """Elements; -1: TensorFlow chooses; 0: none."""
    parallel_calls: int | None
    """The fewest of its maps; -1: TensorFlow chooses; None: it has no map, or it is not known."""
    cached: bool | None


@dataclass(frozen=True, slots=True)
class Called:
    """A collective, send or receive that Python called at one place, so far."""

    name: str
    site: str
    """`file:line`."""
    count: int
    seconds: float
    elements: int | None = None
    """Of the tensor that its first call moved."""
    through: str | None = None
    """The file of torch's that called on behalf of the site, if that did not call itself."""


@dataclass(frozen=True, slots=True)
class Group:
    name: str | None
    ranks: tuple[int, ...] | None
    """None: all."""


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch as its rank saw it. Equal digests: very likely the same samples in the same order."""

    loader: int
    epoch: int
    """From 0, counted by the times the loader was iterated."""
    index: int
    """Within the epoch."""
    digest: str


@dataclass(frozen=True, slots=True)
class Weights:
    """A sample of the parameters at one moment. Comparable where step, sequence and updates are."""

    step: int
    sequence: int
    """Of the default group."""
    updates: int
    """Optimizer steps so far."""
    digest: str


def loaders(rank: Rank | None) -> tuple[Loader, ...]:
    """The rank's loaders, the first one that was iterated first."""
    return tuple(
        Loader(
            workers=whole(one.get("workers")),
            prefetch=whole(one.get("prefetch_factor")),
            persistent=flag(one.get("persistent_workers")),
            pinned=flag(one.get("pin_memory")),
            batch_size=whole(one.get("batch_size")),
            sampler=text(one.get("sampler"), 100),
            sampler_seed=whole(one.get("sampler_seed")),
            sampler_epoch=whole(one.get("sampler_epoch")),
            sampler_ranks=whole(one.get("sampler_ranks")),
            sampler_rank=whole(one.get("sampler_rank")),
            shuffles=flag(one.get("shuffles")),
            dataset_length=whole(one.get("dataset_length")),
            batches=whole(one.get("batches")),
            epochs=whole(one.get("epochs")),
        )
        for one in _entries(rank, "loaders")
    )


def optimizers(rank: Rank | None) -> tuple[Optimizer, ...]:
    """The rank's optimizers."""
    return tuple(
        Optimizer(
            kind=text(one.get("class"), 100),
            parameters=whole(one.get("parameters")),
            dtype=text(one.get("dtype"), 40),
            lr=number(one.get("lr")),
            lr_now=number(one.get("lr_now")),
            lr_default=number(one.get("lr_default")),
        )
        for one in _entries(rank, "optimizers")
    )


def ddp(rank: Rank | None) -> Ddp | None:
    """The rank's first DistributedDataParallel; None: there is none, or it is not known."""
    one = rank.birth.get("ddp") if rank is not None else None
    if not isinstance(one, Mapping):
        return None
    buckets = one.get("buckets")
    sizes = [whole(size) for size in buckets[:4096]] if isinstance(buckets, list) else []
    return Ddp(
        find_unused=flag(one.get("find_unused_parameters")),
        static_graph=flag(one.get("static_graph")),
        bucket_cap_bytes=whole(one.get("bucket_cap_bytes")),
        bucket_view=flag(one.get("gradient_as_bucket_view")),
        parameter_bytes=whole(one.get("parameter_bytes")),
        buckets=tuple(size for size in sizes if size is not None),
        comm_hook=text(one.get("comm_hook"), 100) or None,
        unused_bytes=whole(one.get("unused_bytes")),
        graph_varies=flag(one.get("graph_varies")),
        forwards=whole(one.get("forwards")),
        synced=whole(one.get("synced")),
        scans=whole(one.get("scans")),
        scan_seconds=number(one.get("scan_seconds")),
        backward_seconds=number(one.get("backward_seconds")),
        communication_seconds=number(one.get("communication_seconds")),
        overlap_seconds=number(one.get("overlap_seconds")),
    )


def pipeline(rank: Rank | None) -> Pipeline | None:
    """What the rank told of its pipeline; None: there is none, or it is not known."""
    one = rank.birth.get("pipeline") if rank is not None else None
    if not isinstance(one, Mapping):
        return None
    return Pipeline(
        micro_batches=whole(one.get("micro_batches"), 1, MOST_RANKS),
        schedule=text(one.get("schedule"), 100),
        held=len(_ranks(one.get("held")) or ()) or None,
    )


def replicas(rank: Rank | None) -> int | None:
    """Over which a TensorFlow strategy divides each batch, in this process or in all of them."""
    return whole(rank.birth.get("replicas"), 1, MOST_RANKS) if rank is not None else None


def replica_devices(rank: Rank | None) -> tuple[str, ...]:
    """Of each of them, as `cpu:0`."""
    told = rank.birth.get("replica_devices") if rank is not None else None
    return tuple(text(one, 100) or "" for one in told[:MOST]) if isinstance(told, list) else ()


def tf_pipelines(rank: Rank | None) -> tuple[TfPipeline, ...]:
    """The first ones that the rank iterated over."""
    return tuple(
        TfPipeline(
            prefetch=whole(one.get("prefetch"), -1),
            parallel_calls=whole(one.get("parallel_calls"), -1),
            cached=flag(one.get("cached")),
        )
        for one in _entries(rank, "pipelines")
    )


def worker_paces(rank: Rank | None) -> tuple[Pace, ...]:
    """Of each worker with the closures that a chief of parameter servers gives it."""
    return _paces(rank, "closures", "worker")


def replica_paces(rank: Rank | None) -> tuple[Pace, ...]:
    """Of each replica of a TensorFlow strategy in this process, from a step's beginning until its
    gradients were there."""
    return _paces(rank, "replica_steps", "replica")


def _paces(rank: Rank | None, key: str, name: str) -> tuple[Pace, ...]:
    found = {}
    for one in _entries(rank, key):
        index, count, newest = (whole(one.get(each)) for each in (name, "count", "newest"))
        told = one.get("quartiles")
        values = [number(each) for each in told] if isinstance(told, list) else []
        known = [each for each in values if each is not None and each >= 0]
        if index is None or count is None or not newest or len(known) != 3:
            continue
        if known == sorted(known):
            found[index] = Pace(index, count, newest, *known)
    return tuple(found[index] for index in sorted(found))


def steps(rank: Rank | None) -> int | None:
    """Steps the rank had taken when the certificate was written: what its counters refer to."""
    return whole(rank.birth.get("steps")) if rank is not None else None


def calls(rank: Rank | None) -> tuple[Called, ...]:
    """What Python called of torch.distributed, the dearest first."""
    found = []
    for one in _entries(rank, "calls"):
        name, site = text(one.get("name"), 60), text(one.get("site"), 300)
        count, seconds = whole(one.get("count")), number(one.get("seconds"))
        if name and site and count is not None and seconds is not None:
            elements, through = whole(one.get("elements")), text(one.get("through"), 300)
            found.append(Called(name, site, count, seconds, elements, through))
    return tuple(found)


def groups(rank: Rank | None) -> tuple[Group, ...]:
    """The process groups that the rank has made, the default one first."""
    return tuple(
        Group(text(one.get("name"), 100), _ranks(one.get("ranks")))
        for one in _entries(rank, "groups")
    )


def sends_to(rank: Rank | None) -> tuple[int, ...]:
    """Ranks to which this one sends point to point."""
    return _ranks(rank.birth.get("sends_to")) or () if rank is not None else ()


def receives_from(rank: Rank | None) -> tuple[int, ...]:
    """Ranks from which this one receives point to point."""
    return _ranks(rank.birth.get("receives_from")) or () if rank is not None else ()


def data_parallel_devices(rank: Rank | None) -> int | None:
    """Devices over which `nn.DataParallel` divides a batch, 0 where it found none; None: the rank
    uses no DataParallel, or it is not known."""
    one = rank.birth.get("data_parallel") if rank is not None else None
    return whole(one.get("devices")) if isinstance(one, Mapping) else None


def batches(rank: Rank | None) -> tuple[Batch, ...]:
    """Batches that were looked at, in order."""
    found = []
    for row in _rows(rank, "batches", 4):
        loader, epoch, index, digest = (*map(whole, row[:3]), text(row[3], 64))
        if loader is not None and epoch is not None and index is not None and digest:
            found.append(Batch(loader, epoch, index, digest))
    return tuple(found)


def weights(rank: Rank | None) -> tuple[Weights, ...]:
    """Samples of the parameters, in order."""
    found = []
    for row in _rows(rank, "weights", 4):
        step, sequence, updates, digest = (*map(whole, row[:3]), text(row[3], 64))
        if step is not None and sequence is not None and updates is not None and digest:
            found.append(Weights(step, sequence, updates, digest))
    return tuple(found)


def flag(value: Json) -> bool | None:
    """A boolean; None for anything else."""
    return value if isinstance(value, bool) else None


def _entries(rank: Rank | None, key: str) -> list[Mapping[str, Json]]:
    entries = rank.birth.get(key) if rank is not None else None
    if not isinstance(entries, list):
        return []
    return [one for one in entries[:MOST] if isinstance(one, Mapping)]


def _rows(rank: Rank | None, key: str, width: int) -> list[list[Json]]:
    rows = rank.birth.get(key) if rank is not None else None
    if not isinstance(rows, list):
        return []
    return [row for row in rows[:MOST] if isinstance(row, list) and len(row) == width]


def _ranks(value: Json) -> tuple[int, ...] | None:
    if not isinstance(value, list):
        return None
    known = [whole(one) for one in value[:MOST_RANKS]]
    return tuple(one for one in known if one is not None)
