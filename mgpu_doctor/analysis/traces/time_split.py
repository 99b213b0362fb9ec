"""Where the time of one rank goes, from its trace alone, by exact interval sets. Pure.

Compute, communication, overlap and idle time are defined as in HolisticTraceAnalysis (MIT), so
that the sums can be compared (benchmarks/traces.py): unions of kernels' intervals between the
first kernel's begin and the last one's end; a gap is the host's if what ended it was launched
after the gap had begun, and the device's own if it is shorter than 30 ns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from mgpu_probes.outside.traces.trace_columns import Events, Kind

from mgpu_doctor.analysis.traces import event_names
from mgpu_doctor.case.profiler_traces import Trace

Spans: TypeAlias = npt.NDArray[np.int64]


def spans(starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> Spans:
    """The nonempty spans, in the given order."""
    bounds = np.stack((starts, starts + lengths), axis=1)
    return bounds[lengths > 0]


def union(some: Spans) -> Spans:
    """The same points as disjoint spans that do not touch, by begin."""
    if not len(some):
        return some.reshape(0, 2)
    ordered = some[np.argsort(some[:, 0], kind="stable")]
    reached = np.maximum.accumulate(ordered[:, 1])
    first = np.concatenate(([True], ordered[1:, 0] > reached[:-1]))
    last = np.concatenate((first[1:], [True]))
    return np.stack((ordered[first, 0], reached[last]), axis=1)


def length(some: Spans) -> int:
    """Total length of disjoint spans."""
    return int((some[:, 1] - some[:, 0]).sum())


def measure(some: Spans, at: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Length of disjoint, ordered spans before each point."""
    if not len(some):
        return np.zeros(len(at), np.int64)
    before = np.concatenate(([0], np.cumsum(some[:, 1] - some[:, 0])))
    place = np.searchsorted(some[:, 0], at, side="right")
    inside = np.where(place > 0, np.maximum(0, some[place - 1, 1] - at), 0)
    return np.asarray(before[place] - inside, np.int64)


def within(some: Spans, windows: Spans) -> npt.NDArray[np.int64]:
    """Length of disjoint, ordered spans in each window."""
    return measure(some, windows[:, 1]) - measure(some, windows[:, 0])


def common(spans: Spans, other: Spans) -> int:
    """Length of what two unions share."""
    return int(within(spans, other).sum())


def gaps(some: Spans) -> Spans:
    """The gaps between disjoint, ordered spans."""
    return np.stack((some[:-1, 1], some[1:, 0]), axis=1) if len(some) > 1 else some[:0]


NANO = 1e-9
LONG = 5.0
"""Times the median step from which the first steps are left out. A choice: graphs take seconds."""
LEAST_STEPS = 4
"""Steps from which the median is that of usual ones. A choice."""
KERNEL_WAIT = 30
"""Nanoseconds between kernels that follow each other as fast as the device can (HTA's default)."""
SHORT = 200_000
"""Nanoseconds; a launch from Python takes 5 to 50 µs, so a gap of a few of them is one in which the
host was launching, and a longer one had another reason."""


@dataclass(frozen=True, slots=True)
class Idle:
    """Seconds in which the device ran nothing."""

    host: float
    """Nothing had been launched."""
    kernel: float
    """Between two kernels that were both waiting."""
    other: float
    short: float
    """Idle time caused by the host, in gaps of at most 200 µs."""


@dataclass(frozen=True, slots=True)
class Split:
    """Seconds of one rank, between its first and its last event on the device (on the host, where
    no device is in the trace)."""

    window: float
    compute: float
    communication: float
    copies: float
    exposed: float
    """Communication while nothing computes."""
    idle: float
    why_idle: Idle | None
    """Idle time by reason; None: not on a device."""
    kernels: int
    """Number of kernels that compute."""
    kernel: float | None
    """Median duration of these kernels; None if none."""
    fetching: float
    """The loop asked its loader for a batch and waited, and nothing computed or moved."""
    parts: dict[str, float]
    """What the rank's own time went into, by name; they need not add up."""


def split(trace: Trace) -> Split | None:
    """The time split of the rank; None if nothing ran."""
    return _of_device(trace) if trace.on_device else _of_host(trace)


def without_first_steps(traces: Sequence[Trace]) -> Sequence[Trace]:
    """The traces of a job from the first step on that is not unusually long on any rank: what a
    framework does once, such as TensorFlow's building of a graph, is no part of a step."""
    lengths = [step_lengths(trace) for trace in traces]
    if min(map(len, lengths), default=0) < LEAST_STEPS:
        return traces
    first = max(int(np.argmax(some <= LONG * np.median(some))) for some in lengths)
    return [_from_step(trace, first) for trace in traces] if first else traces


def _from_step(trace: Trace, first: int) -> Trace:
    start = step_starts(trace)[first]
    return replace(trace, events=trace.events[trace.events["start"] >= start])


def _spans(events: Events) -> Spans:
    return spans(events["start"], events["length"])


def _of_device(trace: Trace) -> Split | None:
    events = trace.events
    device = np.isin(events["kind"], (Kind.KERNEL, Kind.COPY, Kind.SET))
    moving = event_names.moves(trace) & device
    copying = device & ~moving & ((events["kind"] != Kind.KERNEL) | event_names.copies(trace))
    computing = device & ~moving & ~copying
    busy, compute = union(_spans(events[device])), union(_spans(events[computing]))
    communication, copied = union(_spans(events[moving])), union(_spans(events[copying]))
    if not len(busy):
        return None
    window = int(busy[-1, 1] - busy[0, 0])
    loading = union(_spans(events[(events["kind"] == Kind.NOTE) & event_names.loaders(trace)]))
    lengths = events["length"][computing]
    return Split(
        window=window * NANO,
        compute=length(compute) * NANO,
        communication=length(communication) * NANO,
        copies=length(copied) * NANO,
        exposed=(length(communication) - common(communication, compute)) * NANO,
        idle=(window - length(busy)) * NANO,
        why_idle=_summed(idle_of(events[device], launches(events))),
        kernels=len(lengths),
        kernel=float(np.median(lengths)) * NANO if len(lengths) else None,
        fetching=(length(loading) - common(loading, busy)) * NANO,
        parts={
            "kernels": length(compute) * NANO,
            "copies": length(copied) * NANO,
            "input": length(loading) * NANO,
        },
    )


def _of_host(trace: Trace) -> Split | None:
    events = trace.events
    note = events["kind"] == Kind.NOTE
    moving = note & event_names.hosted(trace)
    computing = (events["kind"] == Kind.OPERATOR) & ~_of_c10d(trace)
    compute, communication = union(_spans(events[computing])), union(_spans(events[moving]))
    steps = union(_spans(events[note & event_names.steps(trace)]))
    both = union(np.concatenate((compute, communication)))
    if not len(both):
        return None
    whole = union(np.concatenate((both, steps)))
    window = int(whole[-1, 1] - whole[0, 0])
    loading = union(_spans(events[note & event_names.loaders(trace)]))
    flags = {
        "input": note & event_names.loaders(trace),
        "forward": note & event_names.forwards(trace),
        "backward": computing & event_names.backwards(trace),
        "optimizer": note & event_names.optimizers(trace),
    }
    return Split(
        window=window * NANO,
        compute=length(compute) * NANO,
        communication=length(communication) * NANO,
        copies=0.0,
        exposed=(length(communication) - common(communication, compute)) * NANO,
        idle=(window - length(both)) * NANO,
        why_idle=None,
        kernels=0,
        kernel=None,
        fetching=(length(loading) - common(loading, communication)) * NANO,
        parts={name: length(union(_spans(events[some]))) * NANO for name, some in flags.items()},
    )


def _of_c10d(trace: Trace) -> event_names.Flags:
    known = np.fromiter((name.startswith("c10d::") for name in trace.names), bool)
    return np.asarray(known[trace.events["name"]], bool)


def launches(events: Events) -> Events:
    """Calls of the host that may have started something, by correlation."""
    calls: Events = events[(events["kind"] == Kind.LAUNCH) & (events["correlation"] >= 0)]
    ordered: Events = calls[np.argsort(calls["correlation"], kind="stable")]
    return ordered


def idle_of(device: Events, calls: Events) -> npt.NDArray[np.int64]:
    """Rows of events, by start: nanoseconds of the gap that each one ended if the host had not
    launched it before, if the device was quick, and else. `device`: of one stream or of all."""
    begin = device["start"]
    before = np.maximum.accumulate(begin + device["length"])[:-1]
    gap = np.maximum(0, begin[1:] - before)
    launched = launched_at(device[1:], calls)
    host = (launched > before) & (gap > 0)
    kernel = ~host & (gap < KERNEL_WAIT)
    return np.stack((gap * host, gap * kernel, gap * ~(host | kernel)), axis=1)


def launched_at(device: Events, calls: Events) -> npt.NDArray[np.int64]:
    """When the host called for each event; -1: unknown."""
    if not len(calls):
        return np.full(len(device), -1, np.int64)
    place = np.searchsorted(calls["correlation"], device["correlation"])
    place = np.minimum(place, len(calls) - 1)
    same = calls["correlation"][place] == device["correlation"]
    return np.where(same, calls["start"][place], -1)


def _summed(rows: npt.NDArray[np.int64]) -> Idle:
    host, kernel, other = (float(seconds) * NANO for seconds in rows.sum(axis=0))
    short = rows[:, 0][rows[:, 0] <= SHORT].sum()
    return Idle(host, kernel, other, float(short) * NANO)


def by_name(trace: Trace, most: int) -> tuple[tuple[str, int, float], ...]:
    """Kernels and copies that took longest together: name, how many, seconds."""
    events = trace.events
    device = events[np.isin(events["kind"], (Kind.KERNEL, Kind.COPY, Kind.SET))]
    count = np.bincount(device["name"], minlength=len(trace.names))
    total = np.bincount(device["name"], device["length"], minlength=len(trace.names))
    first = np.argsort(-total, kind="stable")[:most]
    return tuple(
        (trace.names[starts], int(count[starts]), float(total[starts]) * NANO)
        for starts in first
        if count[starts]
    )


def step_starts(trace: Trace) -> npt.NDArray[np.int64]:
    """When the profiler says that steps began."""
    events = trace.events
    marked = events[(events["kind"] == Kind.NOTE) & event_names.steps(trace)]
    return np.asarray(marked["start"], np.int64)


def step_lengths(trace: Trace) -> npt.NDArray[np.float64]:
    """Seconds from the begin of a step to that of the next, of the last to its end."""
    events = trace.events
    marked = events[(events["kind"] == Kind.NOTE) & event_names.steps(trace)]
    if not len(marked):
        return np.empty(0)
    ends = np.append(marked["start"][1:], marked["start"][-1] + marked["length"][-1])
    return np.asarray((ends - marked["start"]) * NANO, float)
