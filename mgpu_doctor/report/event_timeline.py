"""All events of a job and its machine up to a moment, latest first. Pure."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mgpu_doctor.case.device_samples import DeviceSample
from mgpu_doctor.findings import Diagnosis, Followed
from mgpu_doctor.formatting import UNKNOWN, format_seconds
from mgpu_doctor.report.job_events import (
    Kind,
    TimelineEvent,
    list_joins_and_ends,
    list_rank_events,
    list_stops,
)
from mgpu_doctor.report.machine_events import exceptions, findings, log_messages, of_gpus

MOST_EVENTS = 500


@dataclass(frozen=True, slots=True)
class Timeline:
    events: tuple[TimelineEvent, ...] = ()
    """Newest last; events without a time come first."""
    left_out: int = 0
    """Older events that are not kept."""


def events_of(
    diagnosis: Diagnosis | None,
    devices: DeviceSample | None = None,
    followed: Sequence[Followed] = (),
    until: float = math.inf,
) -> Timeline:
    """Returns the newest events up to `until` (seconds since the epoch).

    `devices`: a sample newer than those of the job. `followed`: findings with the times at which
    they appeared and resolved.
    """
    events = [
        event
        for event in _all(diagnosis, devices, followed)
        if event.at is None or event.at <= until
    ]
    events.sort(key=_newest_first)
    return Timeline(tuple(events[:MOST_EVENTS]), max(0, len(events) - MOST_EVENTS))


def _newest_first(event: TimelineEvent) -> tuple[float, bool]:
    """Sort key. At the same moment, joins and ends are older than their consequences."""
    return -math.inf if event.at is None else -event.at, event.kind is Kind.RANKS


def _all(
    diagnosis: Diagnosis | None, devices: DeviceSample | None, followed: Sequence[Followed]
) -> Iterator[TimelineEvent]:
    if diagnosis is None:
        yield from of_gpus(None, devices)
    else:
        case = diagnosis.case
        yield from findings(diagnosis, followed)
        yield from of_gpus(case, devices)
        yield from list_joins_and_ends(diagnosis)
        yield from exceptions(case)
        yield from log_messages(case)
        yield from list_rank_events(case)
        yield from list_stops(case)


@dataclass(frozen=True, slots=True)
class NewestEvents:
    events: tuple[TimelineEvent, ...]
    left_out: int
    """Earlier events."""


def newest_events(diagnosis: Diagnosis, most: int) -> NewestEvents:
    """The newest events for a report, without findings, which have their own sections."""
    events = [event for event in events_of(diagnosis).events if event.kind is not Kind.FINDINGS]
    return NewestEvents(tuple(events[:most][::-1]), max(0, len(events) - most))


def format_moment(moment: float | None, started: float | None) -> str:
    """`+12 s` after the start; the UTC time if the start is unknown."""
    if moment is None:
        return UNKNOWN
    if started is None:
        return time.strftime("%H:%M:%S", time.gmtime(moment)) + " UTC"
    return f"+{format_seconds(max(0.0, moment - started))}"
