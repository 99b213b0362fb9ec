"""Metadata of a rank's process from the probe: framework, strategy, settings, devices.

The keys and units are those of docs/black-box.md. A box is untrusted: a value of a wrong
type or out of bounds is unknown (None, or empty), and the rest is kept.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from enum import Enum
from itertools import pairwise
from typing import Annotated, TypeVar

import msgspec
from mgpu_probes.inprocess.training_objects import UnseenWaits
from msgspec import Meta

from mgpu_doctor.case.lenient_json import Json, reader

MOST_RANKS = 65_536
REMEMBERED = 1024
"""Boxes whose metadata is kept parsed: a live view asks for it every second, and it hardly ever
changes."""
HANDS_ON = frozenset({"all_to_all", "all_to_all_single"})
"""Collectives that send samples to another rank than the one that fetched them."""

T = TypeVar("T")
Name = Annotated[str, Meta(max_length=200)]
Dtype = Annotated[str, Meta(max_length=40)]
Site = Annotated[str, Meta(max_length=300)]
Digest = Annotated[str, Meta(max_length=64)]
Path = Annotated[str, Meta(max_length=4000)]
Count = Annotated[int, Meta(ge=0)]
AtLeastOne = Annotated[int, Meta(ge=1)]
Ranks = Annotated[tuple[Count, ...], Meta(max_length=MOST_RANKS)]
Several = Meta(max_length=64)
Seconds = Annotated[float, Meta(ge=0)]


class PhaseClock(str, Enum):
    """The clock that measured a rank's phases."""

    CPU = "cpu"
    """The host does the work itself, so its clock is correct."""
    DEVICE = "device"
    """Events on the device: of the steps with device times, where the box has room for them, or of
    all steps."""
    HOST = "host"
    """Host time of work that a device does asynchronously."""


class Loader(msgspec.Struct, frozen=True):
    """A data loader that was iterated while training."""

    workers: Count | None = None
    prefetch: Count | None = msgspec.field(name="prefetch_factor", default=None)
    persistent: bool | None = msgspec.field(name="persistent_workers", default=None)
    pinned: bool | None = msgspec.field(name="pin_memory", default=None)
    batch_size: Count | None = None
    sampler: Name | None = None
    """Class of its sampler."""
    sampler_seed: Count | None = None
    sampler_epoch: Count | None = None
    """Epoch of the sampler's last `set_epoch` call."""
    sampler_ranks: Count | None = None
    """`num_replicas` of a distributed sampler."""
    sampler_rank: Count | None = None
    shuffles: bool | None = None
    dataset_length: Count | None = None
    batches: Count | None = None
    """Per epoch."""
    epochs: Count | None = None
    """Times it was iterated."""


class Optimizer(msgspec.Struct, frozen=True):
    """An optimizer that steps. Rates are those of its first parameter group."""

    kind: Name | None = msgspec.field(name="class", default=None)
    parameters: Count | None = None
    dtype: Dtype | None = None
    lr: float | None = None
    """Learning rate at its first step."""
    lr_now: float | None = None
    lr_default: float | None = None
    """Default of its class; None where it has none."""


class Ddp(msgspec.Struct, frozen=True):
    """DistributedDataParallel: settings, and what its reducer has logged, per backward pass."""

    find_unused: bool | None = msgspec.field(name="find_unused_parameters", default=None)
    static_graph: bool | None = None
    bucket_cap_bytes: Count | None = None
    bucket_view: bool | None = msgspec.field(name="gradient_as_bucket_view", default=None)
    """Whether gradients are views of the buckets, so that both are one memory."""
    parameter_bytes: Count | None = None
    buckets: Annotated[tuple[Count, ...], Meta(max_length=4096)] = ()
    """Bytes of each bucket, in the order of reduction."""
    comm_hook: Name | None = None
    unused_bytes: Count | None = None
    """Bytes of parameters that took no part in the last sampled backward pass."""
    graph_varies: bool | None = None
    """Whether the set of unused parameters has changed between any two backward passes."""
    forwards: Count | None = None
    """Training forward passes so far."""
    synced: Count | None = None
    """Forward passes whose gradients were reduced (not under `no_sync`)."""
    scans: Count | None = None
    scan_seconds: float | None = None
    """Seconds in all searches for unused parameters together."""
    backward_seconds: float | None = None
    communication_seconds: float | None = None
    overlap_seconds: float | None = None
    """Seconds of communication while backward still computed."""


class Pipeline(msgspec.Struct, frozen=True):
    """Stages made by torch.distributed.pipelining."""

    micro_batches: Annotated[int, Meta(ge=1, le=MOST_RANKS)] | None = None
    """Per call of the schedule."""
    schedule: Name | None = None
    """Its class."""
    held: Ranks = ()
    """Numbers of this rank's stages."""


class Call(msgspec.Struct, frozen=True):
    """A collective, send or receive that Python called at one place, so far."""

    name: Annotated[str, Meta(max_length=60)]
    site: Site
    """`file:line`."""
    count: Count
    seconds: float
    elements: Count | None = None
    """Elements of the tensor in its first call."""
    through: Site | None = None
    """torch's file that called on behalf of the site, if that did not call itself."""


class Group(msgspec.Struct, frozen=True):
    """A process group."""

    name: Name | None = None
    ranks: Ranks | None = None
    """None: all."""
    kind: Name | None = None
    """`data`, `pipeline`, `tensor`, `context` or `expert`, where the writer knows it."""


class Batch(msgspec.Struct, frozen=True, array_like=True):
    """A batch as its rank saw it. Equal digests: very likely the same samples in the same order."""

    loader: Count
    epoch: Count
    """Epoch from 0: the number of earlier iterations of the loader."""
    index: Count
    """Index of the batch within the epoch."""
    digest: Digest


class Weights(msgspec.Struct, frozen=True, array_like=True):
    """A sample of the parameters. Comparable where step, sequence and updates are equal."""

    step: Count
    sequence: Count
    """Sequence number in the default group."""
    updates: Count
    """Optimizer steps so far."""
    digest: Digest


class DataParallel(msgspec.Struct, frozen=True):
    """`nn.DataParallel`."""

    devices: Count | None = None
    """Number of devices that it divides a batch over; 0: it found none."""


class AllocatorMemory(msgspec.Struct, frozen=True):
    """torch's caching allocator on the rank's device. Bytes when the metadata was written last,
    peaks and counters of the whole run."""

    allocated: Count | None = None
    allocated_peak: Count | None = None
    reserved: Count | None = None
    """Bytes reserved on the device, in use or cached."""
    reserved_peak: Count | None = None
    retries: Count | None = None
    """Times that the whole cache was flushed before a request could be met."""
    ooms: Count | None = None


class MemoryPeak(msgspec.Struct, frozen=True, array_like=True):
    """The peak of all steps up to this one, and the largest batch among them (0: unknown)."""

    step: Count
    samples: Count
    tokens: Count
    peak: Count
    """Bytes."""


class MemoryPeaks(msgspec.Struct, frozen=True):
    """The rising peaks of a rank's memory, the newest last."""

    device: Annotated[tuple[MemoryPeak, ...], Several] = ()
    host: Annotated[tuple[MemoryPeak, ...], Several] = ()

    def history(self, where: str) -> tuple[MemoryPeak, ...]:
        """`where`: `device` or `host`. Empty where the peaks do not rise."""
        peaks = self.device if where == "device" else self.host
        rises = all(
            peak.step <= later.step
            and peak.samples <= later.samples
            and peak.tokens <= later.tokens
            and peak.peak <= later.peak
            for peak, later in pairwise(peaks)
        )
        return peaks if rises else ()


class MemoryParts(msgspec.Struct, frozen=True):
    """Bytes of an optimizer's parameters, gradients and states."""

    weights: Count = 0
    gradients: Count = 0
    optimizer: Count = 0
    on: Name | None = None
    """Kind of the device that holds them."""


class TfPipeline(msgspec.Struct, frozen=True):
    """A tf.data pipeline that was iterated over."""

    prefetch: Annotated[int, Meta(ge=-1)] | None = None
    """Elements; -1: TensorFlow chooses; 0: none."""
    parallel_calls: Annotated[int, Meta(ge=-1)] | None = None
    """Least parallel calls of its maps; -1: TensorFlow chooses; None: no map, or unknown."""
    cached: bool | None = None
    operations: Annotated[tuple[Name, ...], Several] = ()
    """Names of its operations, the last one first."""


class Pace(msgspec.Struct, frozen=True):
    """How long one of several takes for its part each time. Seconds."""

    index: Count
    count: Count
    """Number of times so far."""
    newest: AtLeastOne
    """Number of times in the quartiles."""
    quartiles: tuple[Seconds, Seconds, Seconds]

    def __post_init__(self) -> None:
        if not self.low <= self.middle <= self.high:
            raise ValueError("quartiles out of order")

    @property
    def low(self) -> float:
        return self.quartiles[0]

    @property
    def middle(self) -> float:
        return self.quartiles[1]

    @property
    def high(self) -> float:
        return self.quartiles[2]


class WorkerPace(Pace, frozen=True):
    """Times of a worker's closures from the chief of parameter servers."""

    index: Count = msgspec.field(name="worker")


class ReplicaPace(Pace, frozen=True):
    """Times of a TensorFlow strategy's replica, from the start of a step to its gradients."""

    index: Count = msgspec.field(name="replica")


class Treated(msgspec.Struct, frozen=True):
    """What a requested treatment changed in a rank."""

    name: Name | None = None
    changed: Count = 0
    """Number of calls or objects that were changed."""
    sites: Annotated[tuple[Site, ...], Several] = ()
    """The script's lines that made these calls, as `file:line`."""
    refused: Name | None = None
    """Why a call was not changed, a code; the latest one."""
    details: Site | None = None


class ProcessMetadata(msgspec.Struct, frozen=True):
    """The metadata; fields have the names of the box's keys. None: unknown."""

    framework: Name | None = None
    framework_version: Name | None = None
    python: Name | None = None
    strategy: Name | None = None
    backend: Name | None = None
    launcher: Name | None = None
    device: Name | None = None
    device_uuid: Name | None = None
    device_name: Name | None = None
    device_capability: (
        tuple[Annotated[int, Meta(ge=1, le=99)], Annotated[int, Meta(ge=0, le=99)]] | None
    ) = None
    device_order: Name | None = None
    visible_devices: Annotated[str, Meta(min_length=0, max_length=8192)] | None = None
    """CUDA_VISIBLE_DEVICES; empty: none is visible."""
    clock: PhaseClock | None = None
    untimed: Name | None = None
    """Why the device is not timed."""
    unseen_waits: UnseenWaits | None = None
    """Why the wait for other ranks was not measured."""
    precision: Name | None = None
    tf32: bool | None = None
    tf32_convolutions: bool | None = None
    step_sign: Name | None = None
    """How steps were detected: by `marked`, `optimizer`, `backward`, `loader` or `collective`."""
    steps: Count | None = None
    """Steps taken when this was written: what the counters in it refer to."""
    seed: Count | None = None
    batch_samples: Count | None = None
    """Samples of the largest batch of `batches`."""
    input_samples: Count | None = None
    """Samples that the wrapped module was first called with."""
    local_world_size: AtLeastOne | None = None
    threads: AtLeastOne | None = None
    interop_threads: Count | None = None
    affinity: AtLeastOne | None = None
    """Cores that the process may use."""
    main_thread_trains: bool | None = None
    worker_socket: Path | None = None
    argv: Annotated[tuple[Path, ...], Meta(max_length=1000)] | None = None
    ddp: Ddp | None = None
    """The first DistributedDataParallel."""
    data_parallel: DataParallel | None = None
    loaders: Annotated[tuple[Loader, ...], Several] = ()
    """Data loaders, in the order of their first iteration."""
    optimizers: Annotated[tuple[Optimizer, ...], Several] = ()
    pipeline: Pipeline | None = None
    groups: Annotated[tuple[Group, ...], Several] = ()
    """Process groups, the default one first."""
    calls: Annotated[tuple[Call, ...], Several] = ()
    """Calls of torch.distributed from Python, the most expensive first."""
    sends_to: Ranks = ()
    """Ranks to which this one sends point to point."""
    receives_from: Ranks = ()
    batches: Annotated[tuple[Batch, ...], Several] = ()
    weights: Annotated[tuple[Weights, ...], Several] = ()
    device_memory: AllocatorMemory = AllocatorMemory()
    memory_peaks: MemoryPeaks = MemoryPeaks()
    memory_parts: MemoryParts | None = None
    replicas: Annotated[int, Meta(ge=1, le=MOST_RANKS)] | None = None
    """Over which a TensorFlow strategy divides each batch, in this process or in all of them."""
    replica_devices: Annotated[tuple[Name, ...], Several] = ()
    """Device of each replica, as `cpu:0`."""
    replica_seconds: Annotated[tuple[float, ...], Several] = ()
    replica_steps: Annotated[tuple[ReplicaPace, ...], Several] = ()
    closures: Annotated[tuple[WorkerPace, ...], Several] = ()
    pipelines: Annotated[tuple[TfPipeline, ...], Several] = ()
    jit: bool | None = None
    eager: bool | None = None
    treatments: Annotated[tuple[Treated, ...], Several] = ()

    @property
    def loader(self) -> Loader:
        """The loader that was iterated first, which is the one trained from."""
        return self.loaders[0] if self.loaders else _NO_LOADER

    @property
    def hands_samples_on(self) -> bool:
        """Whether samples go to the ranks that hold their experts, or their rows of a table."""
        return any(call.name in HANDS_ON for call in self.calls)

    @property
    def data_parallel_devices(self) -> int | None:
        """Devices that `nn.DataParallel` divides a batch over, 0 where it found none; None: the
        rank uses no DataParallel, or it is not known."""
        return self.data_parallel.devices if self.data_parallel is not None else None

    @property
    def replica_paces(self) -> tuple[Pace, ...]:
        """By number, each once."""
        return _by_index(self.replica_steps)

    @property
    def worker_paces(self) -> tuple[Pace, ...]:
        """By number, each once."""
        return _by_index(self.closures)


def process_metadata(raw: Mapping[str, Json]) -> ProcessMetadata:
    """The metadata in a box's JSON object. Nothing in it can make this fail."""
    known = _parsed.get(id(raw))
    if known is not None and known[0] is raw:
        return known[1]
    metadata = _read(raw) or UNKNOWN
    _parsed[id(raw)] = raw, metadata
    if len(_parsed) > REMEMBERED:
        _parsed.popitem(last=False)
    return metadata


def _by_index(paces: Iterable[Pace]) -> tuple[Pace, ...]:
    by_index = {pace.index: pace for pace in paces}
    return tuple(by_index[index] for index in sorted(by_index))


_read = reader(ProcessMetadata)
_parsed: OrderedDict[int, tuple[Mapping[str, Json], ProcessMetadata]] = OrderedDict()
"""Cache by the identity of the parsed object, which is kept alive so that it stays unique."""
_NO_LOADER = Loader()
UNKNOWN = ProcessMetadata()
"""Metadata of a process without a black box, or without a report from its probe."""
