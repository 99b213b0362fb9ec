"""Events of GPUs, exceptions, log signatures, and findings that appeared or were resolved. Pure."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from mgpu_doctor.analysis.machines.rank_devices import key_of, placements
from mgpu_doctor.case.device_samples import Device, DeviceSample, XidEvent
from mgpu_doctor.case.log_matches import LogMatch
from mgpu_doctor.case.model import Case, Error, Rank
from mgpu_doctor.findings import Diagnosis, Finding, Followed
from mgpu_doctor.formatting import format_ranks, format_seconds
from mgpu_doctor.report.job_events import Kind, TimelineEvent, hosts_of, named, quote, together
from mgpu_doctor.report.text import line
from mgpu_doctor.report.verdict import Tone
from mgpu_doctor.rules.gpu.lost_gpus import is_lost
from mgpu_doctor.signatures.xid_codes import APPLICATION, signature_of

BURST = 60.0
"""Seconds between XIDs of one number on one device that are one event."""
SAME = 5.0
"""Seconds between two reports of one XID, by the recording and by the machine sampler."""


@dataclass(frozen=True, slots=True)
class _Found:
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
        found = [*_xids(samples), *_losses(samples)]
        if found and users is None:
            users = _users(case) if case is not None else {}
        last = {device.index: key_of(device) for sample in samples for device in sample.devices}
        for one in found:
            key = last.get(one.index, "") if one.index is not None else ""
            ranks = (users or {}).get(key, ())
            on = f" {line(host)}" if host and len(hosts) > 1 else ""
            gpu = f"{one.where or 'a GPU'}{on}" if one.index is None else f"GPU {one.index}{on}"
            who = f"{gpu}, {format_ranks(ranks, limit=3)}" if ranks else gpu
            yield TimelineEvent(Kind.GPUS, one.at, who, quote(one.sentence), one.tone)


def _samples(
    case: Case | None, newest: DeviceSample | None
) -> Mapping[str | None, list[DeviceSample]]:
    """Returns host -> the job's samples, then the screen's own."""
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


def _same(xid_event: XidEvent, other: XidEvent) -> bool:
    return (xid_event.index, xid_event.number) == (other.index, other.number) and (
        abs(xid_event.at - other.at) <= SAME
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
            bus = next(
                (device.bus_id for device in sample.devices if device.index == event.index), None
            )
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
    """The first sentence of the XID's meaning."""
    signature = signature_of(number)
    if signature is None:
        return f"XID {number}"
    whole = signature.meaning.replace("{pci}", bus).replace("{xid}", str(number))
    return whole.partition(". ")[0].rstrip(".")


def _losses(samples: Iterable[DeviceSample]) -> Iterator[_Found]:
    """When GPUs were lost and came back. Samples of several unnamed hosts come host by host."""
    gone: dict[int, str] = {}
    there: set[int] = set()
    before = 0.0
    for sample in samples:
        if sample.at < before:
            gone, there = {}, set()
        before = sample.at
        lost = {
            device.index: _why(device)
            for device in sample.devices
            if device.trouble and is_lost(device)
        }
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
    """Whether the device reports any value."""
    known = (device.utilization, device.memory_used, device.power_watts, device.temperature)
    return device.trouble is None or any(one is not None for one in known)


def _why(device: Device) -> str:
    return line(device.trouble or "")


_LOGGER = re.compile(r"^\d+ \S+:\d+\] ")
"""glog's prefix of a line: the thread and the source line."""


def exceptions(case: Case) -> Iterator[TimelineEvent]:
    """Exceptions that ended ranks; equal ones of several ranks at once are one event."""
    hosts = hosts_of(case)
    raised: dict[str, list[tuple[float, Rank]]] = defaultdict(list)
    for rank in (*case.earlier, *case.ranks):
        own = [event for event in rank.events if event.kind == "exception"]
        if rank.error is not None:
            at = rank.error.at if rank.error.at is not None else rank.ended
            words = _sentence(rank.error)
            if at is None:
                yield TimelineEvent(Kind.ERRORS, None, named([rank], hosts), words, Tone.CRITICAL)
            else:
                raised[words].append((at, rank))
        elif own:
            raised[quote(own[-1].text) or "an exception"].append((own[-1].at, rank))
    for words, moments in raised.items():
        first = {id(rank): at for at, rank in moments}
        for group in together(moments):
            at = min(first[id(rank)] for rank in group)
            yield TimelineEvent(Kind.ERRORS, at, named(group, hosts), words, Tone.CRITICAL)


def _sentence(error: Error) -> str:
    line = "" if error.line is None else f":{error.line}"
    place = f", {error.file}{line}" if error.file else ""
    return quote(f"{error.type}: {error.message}{place}" if error.message else error.type + place)


def signs(case: Case) -> Iterator[TimelineEvent]:
    """Console lines of known failures, except exceptions that the ranks recorded themselves."""
    for sign in case.signs:
        if _raised(sign, case):
            continue
        who = "the console" if sign.rank is None else f"rank {sign.rank}"
        often = "" if sign.count == 1 else f", {sign.count} times"
        words = _LOGGER.sub("", sign.text)
        yield TimelineEvent(
            Kind.ERRORS, sign.at, who, quote(f"printed: {words}{often}"), Tone.WARNING
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
    seen = {id(one.finding): one.appeared for one in followed}
    for finding in diagnosis.findings:
        at, since = _moment(finding, ranks), _since(finding)
        if at is None and id(finding) in seen:
            at, since = seen[id(finding)], f"{since}, first seen then"
        yield _event(finding, at, f"{finding.title}{since}")
    for past in followed:
        if past.resolved is not None:
            yield _event(past.finding, past.appeared, past.finding.title)
            after = format_seconds(max(0.0, past.resolved - past.appeared))
            went = f"gone after {after}: {past.finding.title}"
            yield _event(past.finding, past.resolved, went, Tone.GOOD)


def _since(finding: Finding) -> str:
    """`, since step 120`; empty if the title says it. A finding from the first step on may be a
    mean over all steps, so it is not said to hold from the start."""
    if finding.since_step is None or SAYS_WHEN.search(finding.title):
        return ""
    return f", since step {finding.since_step}" if finding.since_step else ", over all steps"


def _event(
    finding: Finding, at: float | None, words: str, tone: Tone | None = None
) -> TimelineEvent:
    numbers = [culprit.rank for culprit in finding.culprits if culprit.rank is not None]
    who = format_ranks(numbers, limit=3) if numbers else ""
    sentence = quote(f"{finding.code}: {words}")
    return TimelineEvent(Kind.FINDINGS, at, who, sentence, tone or Tone(finding.severity.value))


def _moment(finding: Finding, ranks: Iterable[Rank]) -> float | None:
    """When the culprit, or else any rank, ended the finding's first step."""
    if finding.since_step is None:
        return None
    culprits = {culprit.rank for culprit in finding.culprits}
    for rank in sorted(ranks, key=lambda rank: rank.rank not in culprits):
        if len(rank.steps) and "end_ns" in (rank.steps.dtype.names or ()):
            later = np.flatnonzero(rank.steps["step"] >= finding.since_step)
            if len(later) and (later[0] > 0 or rank.steps["step"][0] == finding.since_step):
                return float(rank.steps["end_ns"][later[0]]) / 1e9 + rank.clock_offset
    return None
