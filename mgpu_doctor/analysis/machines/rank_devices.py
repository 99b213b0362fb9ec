"""Which GPU each rank uses, and how that GPU did while the rank trained. Pure.

Three witnesses place a rank, the surest first:

- the UUID that the rank read;
- its pid in the device's list. NVML reports host pids also inside a container, so the list counts
  only if *every* rank with a GPU is found in it; a lone match may be chance;
- the index that the rank uses. It starts at the first visible device, counts as CUDA does (fastest
  first, unless CUDA_DEVICE_ORDER says otherwise) and, if a scheduler hides devices from each rank,
  is `cuda:0` in all of them. So it counts only among devices of one model, and only if no two
  ranks claim the same one.

Pids and indices mean nothing across hosts: there only UUIDs count.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from mgpu_doctor.analysis.steps.warm_up import all_after_warm_up
from mgpu_doctor.case.device_samples import Device, DeviceSample
from mgpu_doctor.case.model import Case, Rank, Unexamined
from mgpu_doctor.case.rank_device import Accelerator, accelerator

Key = str
"""A device: its UUID, or its index if it reports none."""
MOST_SAMPLES = 600
"""Newest samples of a host that are used: ten minutes at one per second."""


@dataclass(frozen=True, slots=True)
class Placement:
    device: Key
    known_by: str
    """`uuid`, `pid` or `index`"""


def placements(case: Case) -> dict[int, Placement]:
    """Rank -> its device; ranks whose device is uncertain are left out."""
    if not case.device_samples:
        return {}
    seen = devices(recent(case))
    gpus = _gpus(case.ranks)
    holding = list_devices_by_pid(case)
    one_host = len({rank.host for rank in case.ranks}) == 1
    by_rank: dict[int, Placement] = {}
    if not gpus:
        by_rank = {
            number: Placement(own[0], "pid") for number, own in holding.items() if len(own) == 1
        }
    guessed: dict[int, Key] = {}
    for number, gpu in gpus.items():
        own = holding.get(number, ())
        by_index = _nth(gpu, gpu.index, seen) if one_host and gpu.index is not None else None
        if gpu.uuid is not None:
            if gpu.uuid in seen:
                by_rank[number] = Placement(gpu.uuid, "uuid")
        elif len(own) == 1:
            by_rank[number] = Placement(own[0], "pid")
        elif by_index is not None and by_index in own:
            by_rank[number] = Placement(by_index, "pid")
        elif by_index is not None and not own:
            guessed[number] = by_index
    claims = Counter([*guessed.values(), *(placement.device for placement in by_rank.values())])
    for number, device in guessed.items():
        if claims[device] == 1:
            by_rank[number] = Placement(device, "index")
    return dict(sorted(by_rank.items()))


def recent(case: Case) -> list[DeviceSample]:
    """The newest samples, in order of time."""
    hosts = {rank.host for rank in case.ranks}
    return sorted(case.device_samples, key=lambda device_sample: device_sample.at)[
        -MOST_SAMPLES * len(hosts) :
    ]


def devices(samples: Iterable[DeviceSample]) -> dict[Key, Device]:
    """Every GPU, as in its last sample."""
    return {key_of(device): device for sample in samples for device in sample.devices}


def key_of(device: Device) -> Key:
    """The key of a device."""
    return device.uuid or f"#{device.index}"


def list_devices_by_pid(case: Case) -> dict[int, tuple[Key, ...]]:
    """Rank -> the devices that list its pid, of ranks on one host; empty unless every rank with a
    GPU is found, as the list may number processes otherwise than the rank does."""
    if not case.device_samples:
        return {}
    gpus = _gpus(case.ranks)
    # Of a job that is only seen from outside, no rank reports its device.
    ranks = [rank for rank in case.ranks if rank.rank in gpus or not gpus]
    if len({rank.host for rank in ranks}) != 1:
        return {}
    listed: dict[int, dict[Key, None]] = defaultdict(dict)
    for sample in recent(case):
        for device in sample.devices:
            for pid in device.pids:
                listed[pid][key_of(device)] = None
    pids = {rank.rank: rank.pid for rank in ranks if rank.rank is not None}
    devices = {
        number: tuple(listed.get(pid, ())) for number, pid in pids.items() if pid is not None
    }
    return devices if len(devices) == len(pids) and all(devices.values()) else {}


def shared(placed: Mapping[int, Placement]) -> dict[Key, tuple[int, ...]]:
    """Device -> its ranks, for devices with several ranks."""
    ranks: dict[Key, list[int]] = defaultdict(list)
    for number, placement in placed.items():
        ranks[placement.device].append(number)
    return {device: tuple(known) for device, known in ranks.items() if len(known) > 1}


def _gpus(ranks: Iterable[Rank]) -> dict[int, Accelerator]:
    accelerators = ((rank.rank, accelerator(rank)) for rank in ranks)
    return {number: gpu for number, gpu in accelerators if number is not None and gpu is not None}


def _nth(gpu: Accelerator, place: int, seen: Mapping[Key, Device]) -> Key | None:
    """The device that the process numbers `place`; None: uncertain."""
    if not gpu.by_bus and len({device.name for device in seen.values()}) > 1:
        return None
    entry = str(place)
    if gpu.visible is not None:
        entry = gpu.visible[place] if place < len(gpu.visible) else ""
    if entry.isdecimal():
        known = [key for key, place in seen.items() if place.index == int(entry)]
    else:
        known = [key for key in seen if entry.startswith("GPU-") and key.startswith(entry)]
    return known[0] if len(known) == 1 else None


LEAST_SAMPLES = 10
"""Least samples of a device: at one per second, ten seconds."""
LEAST_SINCE = 3
"""The same since the rank's last step."""

Series = Sequence[tuple[float, Device]]
"""(seconds since the epoch, the device then), in order."""


@dataclass(frozen=True, slots=True)
class Use:
    """One device over a span of time; None: not known."""

    index: int
    """NVML's."""
    name: str | None
    samples: int
    utilization: float | None = None
    """Mean share, 0..1, of time in which any kernel ran."""
    utilization_high: float | None = None
    """Its 95th percentile."""
    memory_used: int | None = None
    """The most bytes in use, by anybody."""
    memory_total: int | None = None
    clock: float | None = None
    """Median MHz of the SMs, of samples in which the device was not idle."""
    clock_most: float | None = None
    """Maximum SM clock of the device, in MHz."""
    reasons: Mapping[str, float] = field(default_factory=dict)
    """What kept the clock down -> share, 0..1, of samples."""
    power: float | None = None
    """Median watts."""
    power_limit: float | None = None
    temperature: float | None = None
    """The highest, degrees Celsius."""


@dataclass(frozen=True, slots=True)
class OnDevice:
    """A rank on its GPU, from its first step after warm-up to its last."""

    known_by: str
    use: Use
    series: Series
    beside: tuple[int, ...] = ()
    """Other ranks on the same device."""
    foreign: bool | None = None
    """Processes that are no ranks are on the device too; None: pids cannot be compared."""
    replicas: tuple[Use, ...] = ()
    """Devices that its process holds, by NVML's index, where these are several."""
    since: Use | None = None
    """How the device did since the rank's last step; None: it was hardly sampled since."""


def on_devices(case: Case) -> dict[int, OnDevice]:
    """Rank -> its device; ranks whose device is not surely known, or was sampled too few times
    while they trained, are left out."""
    placed = placements(case)
    neighbours, holding = shared(placed), list_devices_by_pid(case)
    own = {rank.pid for rank in case.ranks}
    sampled = _by_device(recent(case)) if placed else {}
    by_rank = {}
    for number, placement in placed.items():
        span = _span(next(rank for rank in case.ranks if rank.rank == number))
        series = within(sampled[placement.device], *span) if span else ()
        if span is None or len(series) < LEAST_SAMPLES:
            continue
        since = [one for one in sampled[placement.device] if one[0] > span[1]]
        replicas = [within(sampled[key], *span) for key in holding.get(number, ())]
        beside = neighbours.get(placement.device, ())
        by_rank[number] = OnDevice(
            known_by=placement.known_by,
            use=use_of(series),
            series=series,
            beside=tuple(other for other in beside if other != number),
            foreign=_foreign(series, own) if holding else None,
            replicas=_uses(replicas) if len(replicas) > 1 else (),
            since=use_of(since) if len(since) >= LEAST_SINCE else None,
        )
    return by_rank


def why_unknown(case: Case) -> Unexamined | None:
    """Why the devices of a job on GPUs are unknown; None if it does not compute on GPUs."""
    if not any(accelerator(rank) for rank in case.ranks):
        return None
    trouble = next(
        (
            device_sample.trouble
            for device_sample in reversed(case.device_samples)
            if device_sample.trouble
        ),
        None,
    )
    if not any(sample.devices for sample in case.device_samples):
        why = trouble or "no device samples were recorded"
        remedy = "run the job under `mgpu-doctor run` on a host whose driver answers `nvidia-smi`"
    elif not placements(case):
        why = "which GPU each rank computes on is not known for sure"
        remedy = (
            "run the ranks under `mgpu-doctor run` with a torch that reports device UUIDs, or "
            "set CUDA_DEVICE_ORDER=PCI_BUS_ID"
        )
    else:
        why = f"fewer than {LEAST_SAMPLES} samples of a device were taken while its rank trained"
        remedy = "let the job run for some tens of seconds"
    return Unexamined("GPU samples", why, remedy)


def within(series: Series, start: float, end: float) -> Series:
    """The samples of a span of seconds since the epoch."""
    return tuple(one_series for one_series in series if start <= one_series[0] <= end)


def use_of(series: Series) -> Use:
    """The summary of a device's samples, of which there must be at least one."""
    known = [device for _, device in series]
    busy = [use for use in known if "idle" not in (use.clock_reasons or ())]
    utilization = [use.utilization for use in known if use.utilization is not None]
    reasons = [use.clock_reasons for use in known if use.clock_reasons is not None]
    names = sorted({name for listed in reasons for name in listed})
    return Use(
        index=known[-1].index,
        name=known[-1].name,
        samples=len(known),
        utilization=float(np.mean(utilization)) if utilization else None,
        utilization_high=float(np.quantile(utilization, 0.95)) if utilization else None,
        memory_used=max(
            (device.memory_used for device in known if device.memory_used), default=None
        ),
        memory_total=max(
            (device.memory_total for device in known if device.memory_total), default=None
        ),
        clock=_median(device.sm_clock_mhz for device in busy),
        clock_most=_median(device.max_sm_clock_mhz for device in known),
        reasons={name: float(np.mean([name in reason for reason in reasons])) for name in names},
        power=_median(device.power_watts for device in busy),
        power_limit=_median(device.power_limit_watts for device in known),
        temperature=max(
            (device.temperature for device in known if device.temperature), default=None
        ),
    )


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.median(known)) if known else None


def _span(rank: Rank) -> tuple[float, float] | None:
    """From the begin of the rank's first step after warm-up to the end of its last."""
    records = all_after_warm_up(rank.steps)
    if not len(records):
        return None
    begin = (int(records["end_ns"][0]) - int(records["wall_ns"][0])) * 1e-9
    return begin + rank.clock_offset, int(records["end_ns"][-1]) * 1e-9 + rank.clock_offset


def _by_device(samples: Iterable[DeviceSample]) -> dict[Key, list[tuple[float, Device]]]:
    by_device: dict[Key, list[tuple[float, Device]]] = defaultdict(list)
    for sample in samples:
        for device in sample.devices:
            by_device[key_of(device)].append((sample.at, device))
    return by_device


def _foreign(series: Series, own: set[int | None]) -> bool:
    return any(pid not in own for _, device in series for pid in device.pids)


def _uses(sampled: Iterable[Series]) -> tuple[Use, ...]:
    uses = [use_of(series) for series in sampled if len(series) >= LEAST_SAMPLES]
    return tuple(sorted(uses, key=lambda use: use.index))
