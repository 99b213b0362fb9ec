"""Which GPU each rank computes on: joins what the ranks know with what NVML shows.

Three witnesses, the surest first. The UUID that the rank read. Its pid in the device's list: NVML
tells the host's pids also inside a container, so the list counts only where *every* rank with a GPU
is found in it; a lone match may be a chance. The index that the rank uses: it starts at the first
visible device, counts as CUDA does (fastest first, unless CUDA_DEVICE_ORDER says otherwise) and,
where a scheduler hides devices from each rank, says `cuda:0` in all of them. So it counts among
devices of one model, and only if no two ranks claim the same one. Pids and indices mean nothing
across hosts: there only UUIDs count.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mgpu_doctor.case.accelerator import Accelerator, accelerator
from mgpu_doctor.case.gpu import Device, DeviceSample
from mgpu_doctor.case.model import Case, Rank

Key = str
"""A device: its UUID, or its index where it told none."""
MOST_SAMPLES = 600
"""Samples of a host that are looked at, the newest: ten minutes at one a second."""


@dataclass(frozen=True, slots=True)
class Placement:
    device: Key
    known_by: str
    """`uuid`, `pid` or `index`"""


def placements(case: Case) -> dict[int, Placement]:
    """Rank -> where it computes; ranks of which it is not sure are left out."""
    if not case.device_samples:
        return {}
    seen = devices(recent(case))
    gpus = _gpus(case.ranks)
    holding = held(case)
    one_host = len({rank.host for rank in case.ranks}) == 1
    found: dict[int, Placement] = {}
    guessed: dict[int, Key] = {}
    for number, gpu in gpus.items():
        own = holding.get(number, ())
        by_index = _nth(gpu, gpu.index, seen) if one_host and gpu.index is not None else None
        if gpu.uuid is not None:
            if gpu.uuid in seen:
                found[number] = Placement(gpu.uuid, "uuid")
        elif len(own) == 1:
            found[number] = Placement(own[0], "pid")
        elif by_index is not None and by_index in own:
            found[number] = Placement(by_index, "pid")
        elif by_index is not None and not own:
            guessed[number] = by_index
    claims = Counter([*guessed.values(), *(one.device for one in found.values())])
    for number, device in guessed.items():
        if claims[device] == 1:
            found[number] = Placement(device, "index")
    return dict(sorted(found.items()))


def recent(case: Case) -> list[DeviceSample]:
    """The newest samples, in order of time."""
    hosts = {rank.host for rank in case.ranks}
    return sorted(case.device_samples, key=lambda one: one.at)[-MOST_SAMPLES * len(hosts) :]


def devices(samples: Iterable[DeviceSample]) -> dict[Key, Device]:
    """Every GPU that was sampled, as it was seen last."""
    return {key_of(device): device for sample in samples for device in sample.devices}


def key_of(device: Device) -> Key:
    """What a device is known by in here."""
    return device.uuid or f"#{device.index}"


def held(case: Case) -> dict[int, tuple[Key, ...]]:
    """Rank -> the devices that list its pid, of ranks on one host; empty unless every rank with a
    GPU is found, as the list may number processes otherwise than the rank does."""
    if not case.device_samples:
        return {}
    gpus = _gpus(case.ranks)
    ranks = [rank for rank in case.ranks if rank.rank in gpus]
    if len({rank.host for rank in ranks}) != 1:
        return {}
    listed: dict[int, dict[Key, None]] = defaultdict(dict)
    for sample in recent(case):
        for device in sample.devices:
            for pid in device.pids:
                listed[pid][key_of(device)] = None
    pids = {rank.rank: rank.pid for rank in ranks if rank.rank is not None}
    found = {number: tuple(listed.get(pid, ())) for number, pid in pids.items() if pid is not None}
    return found if len(found) == len(pids) and all(found.values()) else {}


def shared(placed: Mapping[int, Placement]) -> dict[Key, tuple[int, ...]]:
    """Device -> the ranks that compute on it, where these are several."""
    ranks: dict[Key, list[int]] = defaultdict(list)
    for number, placement in placed.items():
        ranks[placement.device].append(number)
    return {device: tuple(known) for device, known in ranks.items() if len(known) > 1}


def _gpus(ranks: Iterable[Rank]) -> dict[int, Accelerator]:
    found = ((rank.rank, accelerator(rank)) for rank in ranks)
    return {number: gpu for number, gpu in found if number is not None and gpu is not None}


def _nth(gpu: Accelerator, place: int, seen: Mapping[Key, Device]) -> Key | None:
    """The device that the process calls number `place`; None: not sure."""
    if not gpu.by_bus and len({one.name for one in seen.values()}) > 1:
        return None
    entry = str(place)
    if gpu.visible is not None:
        entry = gpu.visible[place] if place < len(gpu.visible) else ""
    if entry.isdecimal():
        known = [key for key, one in seen.items() if one.index == int(entry)]
    else:
        known = [key for key in seen if entry.startswith("GPU-") and key.startswith(entry)]
    return known[0] if len(known) == 1 else None
