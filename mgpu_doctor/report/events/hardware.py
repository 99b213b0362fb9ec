"""What the driver told of the GPUs: XIDs, and devices that were lost and came back."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from mgpu_doctor.analysis.devices.placement import key_of, placements
from mgpu_doctor.case.gpu import Device, DeviceSample, XidEvent
from mgpu_doctor.case.model import Case
from mgpu_doctor.report.events.event import Event, Kind, said, together
from mgpu_doctor.report.text import line, name_ranks
from mgpu_doctor.report.verdict import Tone
from mgpu_doctor.rules.hardware.lost import is_lost
from mgpu_doctor.signatures.xid import APPLICATION, signature_of

BURST = 60.0
"""Seconds between XIDs of one number on one device that are told as one."""
SAME = 5.0
"""Seconds between two tales of one XID by who records a job and who watches the machine."""


@dataclass(frozen=True, slots=True)
class _Found:
    """`at`: None: before anybody looked. `index`: None: `where` is all that is known."""

    at: float | None
    index: int | None
    sentence: str
    tone: Tone
    where: str = ""


def of_gpus(case: Case | None, newest: DeviceSample | None) -> Iterator[Event]:
    """`newest`: a sample beside those of the job."""
    hosts = _samples(case, newest)
    users: Mapping[str, Sequence[int]] | None = None
    for host, samples in hosts.items():
        found = [*_xids(samples), *_losses(samples)]
        if found and users is None:
            users = _users(case) if case is not None else {}
        last = {device.index: key_of(device) for one in samples for device in one.devices}
        for one in found:
            key = last.get(one.index, "") if one.index is not None else ""
            ranks = (users or {}).get(key, ())
            on = f" {line(host)}" if host and len(hosts) > 1 else ""
            gpu = f"{one.where or 'a GPU'}{on}" if one.index is None else f"GPU {one.index}{on}"
            who = f"{gpu}, {name_ranks(ranks, limit=3)}" if ranks else gpu
            yield Event(Kind.GPUS, one.at, who, said(one.sentence), one.tone)


def _samples(
    case: Case | None, newest: DeviceSample | None
) -> Mapping[str | None, list[DeviceSample]]:
    """Those of the job by host, then the screen's own."""
    found: dict[str | None, list[DeviceSample]] = defaultdict(list)
    for sample in case.device_samples if case is not None else ():
        found[sample.host].append(sample)
    if newest is not None:
        own = found[newest.host]
        known = [event for sample in own for event in sample.events]
        events = tuple(one for one in newest.events if not any(_same(one, two) for two in known))
        if not own or newest.at > own[-1].at:
            own.append(replace(newest, events=events))
    return found


def _same(one: XidEvent, other: XidEvent) -> bool:
    return (one.index, one.number) == (other.index, other.number) and (
        abs(one.at - other.at) <= SAME
    )


def _users(case: Case) -> Mapping[str, Sequence[int]]:
    found: dict[str, list[int]] = defaultdict(list)
    for number, placement in placements(case).items():
        found[placement.device].append(number)
    return found


def _xids(samples: Iterable[DeviceSample]) -> Iterator[_Found]:
    heard: dict[tuple[int | None, str | None, int], dict[XidEvent, str | None]] = defaultdict(dict)
    for sample in samples:
        for event in sample.events:
            bus = next((one.bus_id for one in sample.devices if one.index == event.index), None)
            unlisted = event.bus_id if event.index is None else None
            heard[event.index, unlisted, event.number][event] = bus or event.bus_id
    for (index, unlisted, number), events in heard.items():
        where = f"GPU at {line(unlisted)}" if unlisted else ""
        for burst in together(((one.at, one) for one in events), BURST):
            often = f", {len(burst)} times" if len(burst) > 1 else ""
            tone = Tone.WARNING if number in APPLICATION else Tone.CRITICAL
            bus = events[burst[-1]] or f"index {index}"
            yield _Found(burst[-1].at, index, _meaning(number, bus) + often, tone, where)


def _meaning(number: int, bus: str) -> str:
    """The first sentence of what it means."""
    signature = signature_of(number)
    if signature is None:
        return f"XID {number}"
    whole = signature.meaning.replace("{pci}", bus).replace("{xid}", str(number))
    return whole.partition(". ")[0].rstrip(".")


def _losses(samples: Iterable[DeviceSample]) -> Iterator[_Found]:
    """Samples of several hosts that nobody told apart follow each other, host by host."""
    gone: dict[int, str] = {}
    there: set[int] = set()
    before = 0.0
    for sample in samples:
        if sample.at < before:
            gone, there = {}, set()
        before = sample.at
        lost = {one.index: _why(one) for one in sample.devices if one.trouble and is_lost(one)}
        if sample.devices and len(sample.devices) < len(there):
            listed = {one.index for one in sample.devices}
            lost.update(dict.fromkeys(there - listed, "it is not listed any more"))
        for index in lost.keys() - gone.keys():
            at, verb = (sample.at, "was") if there else (None, "is")
            yield _Found(at, index, f"{verb} lost: {lost[index]}", Tone.CRITICAL)
        if gone:
            back = {one.index for one in sample.devices if _answers(one)} - lost.keys()
            for index in gone.keys() & back:
                yield _Found(sample.at, index, "answers again", Tone.GOOD)
            lost = {**{i: why for i, why in gone.items() if i not in back}, **lost}
        gone = lost
        if len(sample.devices) > len(there):
            there = there | {one.index for one in sample.devices}


def _answers(device: Device) -> bool:
    """Whether it tells anything, whatever else it does not."""
    known = (device.utilization, device.memory_used, device.power_watts, device.temperature)
    return device.trouble is None or any(one is not None for one in known)


def _why(device: Device) -> str:
    return line(device.trouble or "")
