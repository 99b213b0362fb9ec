"""The events that a report shows: the newest, the oldest of them first."""

from __future__ import annotations

import time
from dataclasses import dataclass

from mgpu_doctor.findings import Diagnosis
from mgpu_doctor.report import text
from mgpu_doctor.report.events.event import Event, Kind
from mgpu_doctor.report.events.timeline import events_of


@dataclass(frozen=True, slots=True)
class Shown:
    events: tuple[Event, ...]
    left_out: int
    """Earlier ones."""


def shown(diagnosis: Diagnosis, most: int) -> Shown:
    """Without findings: those have sections of their own. How it ended matters most."""
    known = [one for one in events_of(diagnosis).events if one.kind is not Kind.FINDINGS]
    return Shown(tuple(known[:most][::-1]), max(0, len(known) - most))


def since(at: float | None, started: float | None) -> str:
    """After the start; the clock where that is not known."""
    if at is None:
        return text.UNKNOWN
    if started is None:
        return time.strftime("%H:%M:%S", time.gmtime(at)) + " UTC"
    return f"+{text.seconds(max(0.0, at - started))}"
