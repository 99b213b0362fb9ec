"""What happened until the moment of a frame."""

from __future__ import annotations

import math
from dataclasses import replace

from mgpu_doctor.live.frame import Frame
from mgpu_doctor.report.events.timeline import MOST, Timeline, events_of

__all__ = ["MOST", "Timeline", "timeline"]


def timeline(frame: Frame) -> Timeline:
    """The newest events of a frame. A replay tells none that is yet to come."""
    until = frame.at if frame.replay is not None else math.inf
    devices = frame.devices
    if devices is not None and frame.xids:  # a sample itself tells those since the one before
        devices = replace(devices, events=frame.xids)
    return events_of(frame.diagnosis, devices, frame.followed, until)
