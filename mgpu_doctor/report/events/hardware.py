"""What the driver told of the GPUs: XIDs, and devices that were lost and came back."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from mgpu_doctor.analysis.placement import key_of, placements
from mgpu_doctor.case.gpu import Device, DeviceSample, XidEvent
from mgpu_doctor.case.model import Case
from mgpu_doctor.report.events.event import Event, Kind, said, together
from mgpu_doctor.report.text import line, name_ranks
from mgpu_doctor.report.verdict import Tone
from mgpu_doctor.rules.hardware.lost import is_lost
from mgpu_doctor.signatures.xid import APPLICATION, signature_of

BURST = 60.0
"""Seconds between XIDs of one number on one device that are told as one."""
Found = tuple[float | None, int | None, str, Tone]
"""When (None: before anybody looked), the device's index, what, how bad."""


def of_gpus(case: Case | None, newest: DeviceSample | None) -> Iterator[Event]:
    """`newest`: a sample beside those of the job."""
    samples = _samples(case, newest)
    found = [*_xids(samples), *_losses(samples)]
    users = _users(case) if case is not None and found else {}
    last = {device.index: key_of(device) for one in samples for device in one.devices}
    for at, index, sentence, tone in found:
        ranks = users.get(last.get(index, ""), ()) if index is not None else ()
        gpu = "a GPU" if index is None else f"GPU {index}"
        who = f"{gpu}, {name_ranks(ranks, limit=3)}" if ranks else gpu
        yield Event(Kind.GPUS, at, who, said(sentence), tone)


def _samples(case: Case | None, newest: DeviceSample | None) -> list[DeviceSample]:
    """Those of the job, then the screen's own."""
    known = list(case.device_samples) if case is not None else []
    if newest is not None and (not known or newest.at > known[-1].at):
        known.append(newest)
    return known


def _users(case: Case) -> Mapping[str, Sequence[int]]:
    found: dict[str, list[int]] = defaultdict(list)
    for number, placement in placements(case).items():
        found[placement.device].append(number)
    return found


def _xids(samples: Iterable[DeviceSample]) -> Iterator[Found]:
    heard: dict[tuple[int | None, int], dict[XidEvent, str]] = defaultdict(dict)
    for sample in samples:
        for event in sample.events:
            bus = next((one.bus_id for one in sample.devices if one.index == event.index), None)
            heard[event.index, event.number][event] = bus or f"index {event.index}"
    for (index, number), events in heard.items():
        for burst in together(((one.at, one) for one in events), BURST):
            often = f", {len(burst)} times" if len(burst) > 1 else ""
            tone = Tone.WARNING if number in APPLICATION else Tone.CRITICAL
            yield burst[-1].at, index, _meaning(number, events[burst[-1]]) + often, tone


def _meaning(number: int, bus: str) -> str:
    """The first sentence of what it means."""
    signature = signature_of(number)
    if signature is None:
        return f"XID {number}"
    whole = signature.meaning.replace("{pci}", bus).replace("{xid}", str(number))
    return whole.partition(". ")[0].rstrip(".")


def _losses(samples: Iterable[DeviceSample]) -> Iterator[Found]:
    """Samples of several hosts follow each other, host by host."""
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
            yield at, index, f"{verb} lost: {lost[index]}", Tone.CRITICAL
        if gone:
            back = {one.index for one in sample.devices if _answers(one)} - lost.keys()
            for index in gone.keys() & back:
                yield sample.at, index, "answers again", Tone.GOOD
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
