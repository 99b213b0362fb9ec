"""Times the phases of a step by their kernels, from a trace of torch's profiler. Pure.

The workload annotates its phases on the host. A kernel belongs to the phase in which it was
launched, by any thread: autograd launches the kernels of a backward pass in its own thread.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

PHASES = ("forward", "backward", "optimizer")
_ANNOTATION = re.compile(r"mgpu-doctor (\d+) (forward|backward|optimizer)")
_ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
_ON_HOST = ("cuda_runtime", "cuda_driver", "hip_runtime", "xpu_runtime")
"""Categories of Kineto's events."""
_WAITS = re.compile(r"(Synchronize|^(cuda|hip)Memcpy)(?!.*Async)")
"""Calls in which the host waits for the device."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Minimum and maximum seconds of a phase on the device. The time between the last kernel of a
    phase and the first of the next one may belong to either."""

    least: float
    most: float

    def error(self, seconds: float) -> float:
        """Returns by how many seconds a measurement is outside the bounds; 0: it can be right."""
        return max(self.least - seconds, seconds - self.most, 0.0)


@dataclass(frozen=True, slots=True)
class TracedSteps:
    """What a trace shows of the workload's steps."""

    phases: Mapping[int, Mapping[str, Bounds]] = field(default_factory=dict)
    """Number of the step -> phase -> its time. Empty: no kernels were recorded."""
    waits: int | None = None
    """Calls within the steps in which the host waits for the device; None: the calls of the
    device's runtime were not recorded."""


def is_wait(event: Mapping[str, Any]) -> bool:
    """Whether an event of a trace is a call in which the host waits for the device."""
    return event.get("cat") in _ON_HOST and bool(_WAITS.search(str(event.get("name"))))


def read_trace(trace: Mapping[str, Any]) -> TracedSteps:
    """The steps of a trace. Raises KeyError, TypeError or ValueError if it is not one of Kineto."""
    events = [event for event in trace["traceEvents"] if event.get("ph") == "X"]
    spans = sorted(
        (float(event["ts"]), float(event["ts"]) + float(event["dur"]), int(match[1]), match[2])
        for event in events
        if event.get("cat") == "user_annotation" and (match := _ANNOTATION.fullmatch(event["name"]))
    )
    begins = [span[0] for span in spans]
    kernels: dict[tuple[int, str], list[float]] = {}
    launches: dict[int, tuple[int, str]] = {}
    calls = [event for event in events if event.get("cat") in _ON_HOST]
    waits = 0
    for call in calls:
        position = bisect_right(begins, float(call["ts"])) - 1
        if position < 0 or float(call["ts"]) > spans[position][1]:
            continue
        launches[int(call["args"]["correlation"])] = spans[position][2:]
        waits += is_wait(call)
    for event in events:
        phase = (
            launches.get(int(event["args"]["correlation"]))
            if event.get("cat") in _ON_DEVICE
            else None
        )
        if phase is not None:
            kernels.setdefault(phase, []).extend((event["ts"], event["ts"] + event["dur"]))
    steps = sorted({number for number, _ in kernels})
    return TracedSteps(_bounds(kernels, steps), waits if calls else None)


def _bounds(
    kernels: Mapping[tuple[int, str], list[float]], steps: Iterable[int]
) -> dict[int, dict[str, Bounds]]:
    """Returns the bounds of the steps whose neighbours are in the trace, too."""
    order = [(step, phase) for step in steps for phase in PHASES if (step, phase) in kernels]
    bounds: dict[int, dict[str, Bounds]] = {}
    for position in range(1, len(order) - 1):
        begin, end = min(kernels[order[position]]), max(kernels[order[position]])
        previous_end, next_begin = (
            max(kernels[order[position - 1]]),
            min(kernels[order[position + 1]]),
        )
        step, phase = order[position]
        bounds.setdefault(step, {})[phase] = Bounds(
            (end - begin) * 1e-6, (next_begin - previous_end) * 1e-6
        )
    return bounds
