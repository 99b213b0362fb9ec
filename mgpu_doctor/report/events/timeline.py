"""Everything that happened until a moment, newest first. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mgpu_doctor.case.gpu import DeviceSample
from mgpu_doctor.findings import Diagnosis, Followed
from mgpu_doctor.report.events.coming import came_and_went
from mgpu_doctor.report.events.event import Event, Kind
from mgpu_doctor.report.events.hardware import of_gpus
from mgpu_doctor.report.events.judged import findings
from mgpu_doctor.report.events.printed import exceptions, signs
from mgpu_doctor.report.events.told import told_by_ranks

MOST = 500


@dataclass(frozen=True, slots=True)
class Timeline:
    events: tuple[Event, ...] = ()
    """Those of which nobody knows when come first."""
    left_out: int = 0
    """Older ones that are not kept."""


def events_of(
    diagnosis: Diagnosis | None,
    devices: DeviceSample | None = None,
    followed: Sequence[Followed] = (),
    until: float = math.inf,
) -> Timeline:
    """The newest events. `devices`: newer than those of the job; `followed`: findings as they came
    and went; `until`: seconds since the epoch, what comes later is not told."""
    known = [
        event
        for event in _all(diagnosis, devices, followed)
        if event.at is None or event.at <= until
    ]
    known.sort(key=_newest_first)
    return Timeline(tuple(known[:MOST]), max(0, len(known) - MOST))


def _newest_first(event: Event) -> tuple[float, bool]:
    """Of a moment, who came or went is older than what that did to others."""
    return -math.inf if event.at is None else -event.at, event.kind is Kind.RANKS


def _all(
    diagnosis: Diagnosis | None, devices: DeviceSample | None, followed: Sequence[Followed]
) -> Iterator[Event]:
    if diagnosis is None:
        yield from of_gpus(None, devices)
    else:
        case = diagnosis.case
        yield from findings(diagnosis, followed)
        yield from of_gpus(case, devices)
        yield from came_and_went(case)
        yield from exceptions(case)
        yield from signs(case)
        yield from told_by_ranks(case)
