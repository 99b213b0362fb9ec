"""A rank's birth certificate as typed facts. It is input from somebody else: what has not the
right type is None, lists are bounded. Keys and units: docs/black-box.md."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from mgpu_doctor.case.files import Json, number, text, whole, words
from mgpu_doctor.case.model import Rank

MOST = 64
MOST_RANKS = 65_536
HANDED_ON = frozenset({"all_to_all", "all_to_all_single"})
"""Collectives by which samples go to another rank than the one that fetched them."""
NAMES = (
    "framework",
    "framework_version",
    "python",
    "strategy",
    "backend",
    "launcher",
    "device",
    "device_uuid",
    "device_name",
    "device_order",
    "clock",
    "precision",
    "step_sign",
)
COUNTS = (
    "local_world_size",
    "threads",
    "interop_threads",
    "affinity",
    "replicas",
    "seed",
    "steps",
    "input_samples",
)
FLAGS = ("main_thread_trains", "tf32", "tf32_convolutions", "jit", "eager")


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


def certificate(told: Mapping[str, Json]) -> dict[str, Json]:
    """The birth certificate with its plain values in their types: a name is a line of text, a
    count not negative; what is not so is left out, so that rules may compare and count them. Lists
    and mappings stay as they were told: the functions below make facts of them."""
    typed: dict[str, Json] = {}
    for key, value in told.items():
        read = _PLAIN.get(key)
        fact = value if read is None else read(value)
        if fact is not None or read is None:
            typed[key] = fact
    return typed


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
        for one in entries(rank, "loaders")
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
        for one in entries(rank, "optimizers")
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


def steps(rank: Rank | None) -> int | None:
    """Steps the rank had taken when the certificate was written: what its counters refer to."""
    return whole(rank.birth.get("steps")) if rank is not None else None


def calls(rank: Rank | None) -> tuple[Called, ...]:
    """What Python called of torch.distributed, the dearest first."""
    found = []
    for one in entries(rank, "calls"):
        name, site = text(one.get("name"), 60), text(one.get("site"), 300)
        count, seconds = whole(one.get("count")), number(one.get("seconds"))
        if name and site and count is not None and seconds is not None:
            elements, through = whole(one.get("elements")), text(one.get("through"), 300)
            found.append(Called(name, site, count, seconds, elements, through))
    return tuple(found)


def hands_on(rank: Rank | None) -> bool:
    """Whether its samples go to the ranks that hold their experts, or their rows of a table."""
    return any(one.name in HANDED_ON for one in calls(rank))


def groups(rank: Rank | None) -> tuple[Group, ...]:
    """The process groups that the rank has made, the default one first."""
    return tuple(
        Group(text(one.get("name"), 100), _ranks(one.get("ranks")))
        for one in entries(rank, "groups")
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


def entries(rank: Rank | None, key: str) -> list[Mapping[str, Json]]:
    """The dictionaries of a list, as many as are read."""
    told = rank.birth.get(key) if rank is not None else None
    if not isinstance(told, list):
        return []
    return [one for one in told[:MOST] if isinstance(one, Mapping)]


def _rows(rank: Rank | None, key: str, width: int) -> list[list[Json]]:
    rows = rank.birth.get(key) if rank is not None else None
    if not isinstance(rows, list):
        return []
    return [row for row in rows[:MOST] if isinstance(row, list) and len(row) == width]


def _name(value: Json) -> str | None:
    return text(value, 200)


_PLAIN: Mapping[str, Callable[[Json], Json]] = {
    **dict.fromkeys(NAMES, _name),
    **dict.fromkeys(COUNTS, whole),
    **dict.fromkeys(FLAGS, flag),
    "argv": words,
}


def _ranks(value: Json) -> tuple[int, ...] | None:
    if not isinstance(value, list):
        return None
    known = [whole(one) for one in value[:MOST_RANKS]]
    return tuple(one for one in known if one is not None)
