"""Everything that happened until the moment of a frame, newest first. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from mgpu_doctor.live.frame import Frame
from mgpu_doctor.tui.events.coming import came_and_went
from mgpu_doctor.tui.events.event import Event
from mgpu_doctor.tui.events.hardware import of_gpus
from mgpu_doctor.tui.events.judged import findings
from mgpu_doctor.tui.events.printed import exceptions, signs
from mgpu_doctor.tui.events.told import told_by_ranks

MOST = 500


@dataclass(frozen=True, slots=True)
class Timeline:
    events: tuple[Event, ...] = ()
    """Those of which nobody knows when come first."""
    left_out: int = 0
    """Older ones that are not kept."""


def timeline(frame: Frame) -> Timeline:
    """The newest events of a frame. A replay tells none that is yet to come."""
    until = frame.at if frame.replay is not None else math.inf
    known = [event for event in _all(frame) if event.at is None or event.at <= until]
    known.sort(key=lambda event: -math.inf if event.at is None else -event.at)
    return Timeline(tuple(known[:MOST]), max(0, len(known) - MOST))


def _all(frame: Frame) -> Iterator[Event]:
    yield from findings(frame)
    yield from of_gpus(frame)
    if frame.diagnosis is not None:
        case = frame.diagnosis.case
        yield from came_and_went(case)
        yield from exceptions(case)
        yield from signs(case)
        yield from told_by_ranks(case)
