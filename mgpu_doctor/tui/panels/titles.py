"""Titles of panels: what they show, whose that is, and how old where it is older than asked for."""

from __future__ import annotations

from collections.abc import Callable

from mgpu_doctor.live.frame import Frame
from mgpu_doctor.report.text import cut, line
from mgpu_doctor.tui.filter.shown import gpus as gpus_of

Title = Callable[[Frame], str]

LONGEST_HOST = 30
OLD = 2.5
"""Seconds from which the age of what is shown is told; as many intervals where those are longer.
Half of one beyond two: what comes with every other frame is not told by turns."""


def gpus(frame: Frame) -> str:
    return _aged(_whose(frame), frame.gpus_age, frame)


def gpu(frame: Frame) -> str:
    return _aged("GPU", frame.gpus_age, frame)


def ranks(frame: Frame) -> str:
    return _aged("Ranks", frame.ranks_age, frame)


def rank(frame: Frame) -> str:
    return _aged("Rank", frame.ranks_age, frame)


def steps(frame: Frame) -> str:
    return _aged("Steps", frame.ranks_age, frame)


def _aged(name: str, age: float, frame: Frame) -> str:
    return f"{name}, {age:.0f} s ago" if age > OLD * max(1.0, frame.interval) else name


def _whose(frame: Frame) -> str:
    """By host, where there are several."""
    hosts = {one.host for one in gpus_of(frame)}
    ranks = frame.diagnosis.ranks if frame.diagnosis is not None else ()
    of_job = {rank.host for rank in ranks}
    if len(hosts) > 1:
        among = f" of {len(hosts | of_job)}" if of_job - hosts else ""
        return f"GPUs of {len(hosts)}{among} hosts"
    host = next(iter(hosts), frame.devices.host if frame.devices is not None else None)
    several = bool(frame.elsewhere) or len(of_job) > 1
    return f"GPUs of {cut(line(host), LONGEST_HOST)}" if host and several else "GPUs"
