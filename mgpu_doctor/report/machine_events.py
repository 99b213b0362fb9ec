"""Events of GPUs, exceptions, log signatures, and findings that appeared or were resolved. Pure."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from msgspec import structs

from mgpu_doctor.analysis.machines.rank_devices import key_of, placements
from mgpu_doctor.case.device_samples import Device, DeviceSample, XidEvent
from mgpu_doctor.case.log_matches import LogMatch
from mgpu_doctor.case.model import Case, Error, Rank
from mgpu_doctor.findings import Diagnosis, Finding, Followed
from mgpu_doctor.formatting import format_ranks, format_seconds
from mgpu_doctor.report.job_events import (
    Kind,
    TimelineEvent,
    group_by_moment,
    hosts_of,
    name_ranks,
    quote,
)
from mgpu_doctor.report.text import line
from mgpu_doctor.report.verdict import Tone
from mgpu_doctor.rules.gpu.lost_gpus import is_lost
from mgpu_doctor.signatures.xid_codes import APPLICATION, signature_of

BURST = 60.0
"""Seconds between XIDs of one number on one device that are one event."""
SAME_XID = 5.0
"""Seconds between two reports of one XID, by the recording and by the machine sampler."""


@dataclass(frozen=True, slots=True)
class _GpuEvent:
    """A GPU's event. `at`: None if before the first sample. `index`: None if only `where` is
    known."""

    at: float | None
    index: int | None
    sentence: str
    tone: Tone
    where: str = ""


def of_gpus(case: Case | None, newest: DeviceSample | None) -> Iterator[TimelineEvent]:
    """Returns the events of the GPUs. `newest`: a sample that is not among those of the job."""
    hosts = _samples(case, newest)
    users: Mapping[str, Sequence[int]] | None = None
    for host, samples in hosts.items():
        gpu_events = [*_xids(samples), *_losses(samples)]
        if gpu_events and users is None:
            users = _ranks_by_device(case) if case is not None else {}
        last = {device.index: key_of(device) for sample in samples for device in sample.devices}
        for gpu_event in gpu_events:
            key = last.get(gpu_event.index, "") if gpu_event.index is not None else ""
            ranks = (users or {}).get(key, ())
            host_suffix = f" {line(host)}" if host and len(hosts) > 1 else ""
            gpu = (
                f"{gpu_event.where or 'a GPU'}{host_suffix}"
                if gpu_event.index is None
                else f"GPU {gpu_event.index}{host_suffix}"
            )
            subject = f"{gpu}, {format_ranks(ranks, limit=3)}" if ranks else gpu
            yield TimelineEvent(
                Kind.GPUS, gpu_event.at, subject, quote(gpu_event.sentence), gpu_event.tone
            )


def _samples(
    case: Case | None, newest: DeviceSample | None
) -> Mapping[str | None, list[DeviceSample]]:
    """Returns host -> the job's samples, then the screen's own."""
    by_host: dict[str | None, list[DeviceSample]] = defaultdict(list)
    for sample in case.device_samples if case is not None else ():
        by_host[sample.host].append(sample)
    if newest is not None:
        earlier = by_host[newest.host]
        recorded = [event for sample in earlier for event in sample.events]
        events = tuple(
            event
            for event in newest.events
            if not any(_is_same_xid(event, two) for two in recorded)
        )
        if not earlier or newest.at > earlier[-1].at:
            earlier.append(structs.replace(newest, events=events))
    return by_host


def _is_same_xid(xid_event: XidEvent, recorded: XidEvent) -> bool:
    return (xid_event.index, xid_event.number) == (recorded.index, recorded.number) and (
        abs(xid_event.at - recorded.at) <= SAME_XID
    )


def _ranks_by_device(case: Case) -> Mapping[str, Sequence[int]]:
    ranks_by_device: dict[str, list[int]] = defaultdict(list)
    for number, placement in placements(case).items():
        ranks_by_device[placement.device].append(number)
    return ranks_by_device


def _xids(samples: Iterable[DeviceSample]) -> Iterator[_GpuEvent]:
    heard: dict[tuple[int | None, str | None, int], dict[XidEvent, str | None]] = defaultdict(dict)
    for sample in samples:
        for event in sample.events:
            bus = next(
                (device.bus_id for device in sample.devices if device.index == event.index), None
            )
            unlisted = event.bus_id if event.index is None else None
            heard[event.index, unlisted, event.number][event] = bus or event.bus_id
    for (index, unlisted, number), events in heard.items():
        where = f"GPU at {line(unlisted)}" if unlisted else ""
        for burst in group_by_moment(((event.at, event) for event in events), BURST):
            often = f", {len(burst)} times" if len(burst) > 1 else ""
            tone = Tone.WARNING if number in APPLICATION else Tone.CRITICAL
            bus = events[burst[-1]] or f"index {index}"
            yield _GpuEvent(burst[-1].at, index, _meaning(number, bus) + often, tone, where)


def _meaning(number: int, bus: str) -> str:
    """The first sentence of the XID's meaning."""
    signature = signature_of(number)
    if signature is None:
        return f"XID {number}"
    meaning = signature.meaning.replace("{pci}", bus).replace("{xid}", str(number))
    return meaning.partition(". ")[0].rstrip(".")


def _losses(samples: Iterable[DeviceSample]) -> Iterator[_GpuEvent]:
    """When GPUs were lost and came back. Samples of several unnamed hosts come host by host."""
    lost_before: dict[int, str] = {}
    listed_before: set[int] = set()
    previous_time = 0.0
    for sample in samples:
        if sample.at < previous_time:
            lost_before, listed_before = {}, set()
        previous_time = sample.at
        lost = {
            device.index: _trouble_of(device)
            for device in sample.devices
            if device.trouble and is_lost(device)
        }
        if sample.devices and len(sample.devices) < len(listed_before):
            listed = {device.index for device in sample.devices}
            lost.update(dict.fromkeys(listed_before - listed, "it is not listed any more"))
        for index in lost.keys() - lost_before.keys():
            moment, verb = (sample.at, "was") if listed_before else (None, "is")
            yield _GpuEvent(moment, index, f"{verb} lost: {lost[index]}", Tone.CRITICAL)
        if lost_before:
            back = {
                device.index for device in sample.devices if _has_readings(device)
            } - lost.keys()
            for index in lost_before.keys() & back:
                yield _GpuEvent(sample.at, index, "answers again", Tone.GOOD)
            lost = {**{i: why for i, why in lost_before.items() if i not in back}, **lost}
        lost_before = lost
        if len(sample.devices) > len(listed_before):
            listed_before = listed_before | {device.index for device in sample.devices}


def _has_readings(device: Device) -> bool:
    """Whether the device reports any value."""
    readings = (device.utilization, device.memory_used, device.power_watts, device.temperature)
    return device.trouble is None or any(reading is not None for reading in readings)


def _trouble_of(device: Device) -> str:
    return line(device.trouble or "")


_LOGGER = re.compile(r"^\d+ \S+:\d+\] ")
"""glog's prefix of a line: the thread and the source line."""


def exceptions(case: Case) -> Iterator[TimelineEvent]:
    """Exceptions that ended ranks; equal ones of several ranks at once are one event."""
    hosts = hosts_of(case)
    raised: dict[str, list[tuple[float, Rank]]] = defaultdict(list)
    for rank in (*case.earlier, *case.ranks):
        logged = [event for event in rank.events if event.kind == "exception"]
        if rank.error is not None:
            moment = rank.error.at if rank.error.at is not None else rank.ended
            sentence = _sentence(rank.error)
            if moment is None:
                yield TimelineEvent(
                    Kind.ERRORS, None, name_ranks([rank], hosts), sentence, Tone.CRITICAL
                )
            else:
                raised[sentence].append((moment, rank))
        elif logged:
            raised[quote(logged[-1].text) or "an exception"].append((logged[-1].at, rank))
    for sentence, moments in raised.items():
        first = {id(rank): moment for moment, rank in moments}
        for group in group_by_moment(moments):
            moment = min(first[id(rank)] for rank in group)
            yield TimelineEvent(
                Kind.ERRORS, moment, name_ranks(group, hosts), sentence, Tone.CRITICAL
            )


def _sentence(error: Error) -> str:
    line = "" if error.line is None else f":{error.line}"
    place = f", {error.file}{line}" if error.file else ""
    return quote(f"{error.type}: {error.message}{place}" if error.message else error.type + place)


def log_messages(case: Case) -> Iterator[TimelineEvent]:
    """Console lines of known failures, except exceptions that the ranks recorded themselves."""
    for sign in case.signs:
        if _raised(sign, case):
            continue
        subject = "the console" if sign.rank is None else f"rank {sign.rank}"
        often = "" if sign.count == 1 else f", {sign.count} times"
        message = _LOGGER.sub("", sign.text)
        yield TimelineEvent(
            Kind.ERRORS, sign.at, subject, quote(f"printed: {message}{often}"), Tone.WARNING
        )


def _raised(sign: LogMatch, case: Case) -> bool:
    """Returns whether the line is the exception in the rank's own black box."""
    return any(
        rank.error is not None
        and rank.error.message != ""
        and sign.rank in (None, rank.rank)
        and quote(rank.error.message) in quote(sign.text)
        for rank in case.ranks
    )


SAYS_WHEN = re.compile(r"from the (?:start|first step)|\bsteps? \d")
"""Titles that say since when the finding holds."""


def findings(diagnosis: Diagnosis, followed: Sequence[Followed]) -> Iterator[TimelineEvent]:
    """Returns when findings began and were resolved, by their first step or by when they were first
    seen."""
    ranks = diagnosis.case.ranks
    appearances = {id(finding.finding): finding.appeared for finding in followed}
    for finding in diagnosis.findings:
        at, since = _moment(finding, ranks), _since(finding)
        if at is None and id(finding) in appearances:
            at, since = appearances[id(finding)], f"{since}, first seen then"
        yield _event(finding, at, f"{finding.title}{since}")
    for past in followed:
        if past.resolved is not None:
            yield _event(past.finding, past.appeared, past.finding.title)
            duration = format_seconds(max(0.0, past.resolved - past.appeared))
            resolved = f"gone after {duration}: {past.finding.title}"
            yield _event(past.finding, past.resolved, resolved, Tone.GOOD)


def _since(finding: Finding) -> str:
    """`, since step 120`; empty if the title says it. A finding from the first step on may be a
    mean over all steps, so it is not said to hold from the start."""
    if finding.since_step is None or SAYS_WHEN.search(finding.title):
        return ""
    return f", since step {finding.since_step}" if finding.since_step else ", over all steps"


def _event(
    finding: Finding, moment: float | None, message: str, tone: Tone | None = None
) -> TimelineEvent:
    numbers = [culprit.rank for culprit in finding.culprits if culprit.rank is not None]
    subject = format_ranks(numbers, limit=3) if numbers else ""
    sentence = quote(f"{finding.code}: {message}")
    return TimelineEvent(
        Kind.FINDINGS, moment, subject, sentence, tone or Tone(finding.severity.value)
    )


def _moment(finding: Finding, ranks: Iterable[Rank]) -> float | None:
    """When the culprit, or else any rank, ended the finding's first step."""
    if finding.since_step is None:
        return None
    culprits = {culprit.rank for culprit in finding.culprits}
    for rank in sorted(ranks, key=lambda rank: rank.rank not in culprits):
        if len(rank.steps):
            later = np.flatnonzero(rank.steps["step"] >= finding.since_step)
            if len(later) and (later[0] > 0 or rank.steps["step"][0] == finding.since_step):
                return float(rank.steps["end_ns"][later[0]]) / 1e9 + rank.clock_offset
    return None
