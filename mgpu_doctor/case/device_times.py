"""Steps by the clock of the hardware that does the work: the host or the device.

A box holds a step record with the host's times for every step, and device times of some of them
(docs/black-box.md). Ranks are compared by the latter alone; wall time, progress and throughput
follow from the former. On a CPU, only some steps of a loop with short steps are timed: the records
of the others hold no phases.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from mgpu_probes.inprocess.layout import OUT_OF_TURN, UNTIMED

from mgpu_doctor.case.model import Rank, Records
from mgpu_doctor.case.process_metadata import PhaseClock
from mgpu_doctor.case.rank_device import is_host_stamped, record_clock
from mgpu_doctor.recording.columns import Columns
from mgpu_doctor.recording.records import DEVICE_DTYPE

DEVICE_TIMED = 1 << 31
"""Flag of a step whose wall time and phases are the device's."""

AFTER_UNTIMED = 1 << 30
"""Flag of a timed step that follows an untimed one: hooks that have just rested cost more (20 µs of
own work in a step of 0.3 ms, because their code is no longer in the caches)."""

Times: TypeAlias = "npt.NDArray[np.void]"
"""Records of device times, `mgpu_doctor.recording.box.DEVICE_DTYPE`."""


@dataclass(frozen=True, slots=True)
class RunAhead:
    """How far the host of a rank was ahead of its device when backward began. Seconds, medians."""

    least: float
    most: float | None
    """Upper bound; None: unknown."""
    at_forward: float = 0.0
    """Least seconds that it was ahead when the forward pass began."""


class BoundBy(str, Enum):
    """Whether a rank is host-bound or device-bound."""

    HOST = "host"
    """Its device waits for its host, or it computes on the CPU."""
    DEVICE = "device"
    """Its device always has queued work; of a rank that waits for others, a collective."""


def clock_of(rank: Rank) -> PhaseClock:
    """The clock of the phases by which the rank is compared and shown."""
    clock = record_clock(rank)
    return PhaseClock.DEVICE if clock is PhaseClock.HOST and len(device_times(rank)[0]) else clock


def on_one_clock(rank: Rank) -> Rank:
    """The rank with only those steps whose phases say what it did: the timed steps of a rank that
    computes on the CPU, mostly all; those that its device timed, with the device's wall time and
    phases, of one that computes on a device."""
    if not is_host_stamped(rank):
        if timed(rank.steps) is rank.steps:
            return rank
        return replace(rank, steps=_noting_rests(rank.steps), history=timed(rank.history))
    return replace(rank, steps=_device_timed(rank), history=rank.history[:0])


def timed(records: Records) -> Records:
    """The records without those of steps (or windows with steps) of which only the wall time is
    known."""
    if isinstance(records, Columns) and (same := records.same("flags")) is not None:
        is_untimed = int.from_bytes(same, sys.byteorder) & UNTIMED != 0
        return records[:0] if is_untimed else records
    if "flags" not in (records.dtype.names or ()):
        return records
    untimed_steps = records["flags"] & UNTIMED != 0
    return records[~untimed_steps] if untimed_steps.any() else records


def _noting_rests(records: Records) -> Records:
    """The steps timed in turn, with the flag of those that follow an untimed one."""
    flags, sequence = records["flags"], records["seq"]
    rests = (flags[:-1] & UNTIMED != 0) & (np.diff(sequence) == 1)
    marked = records.copy()
    marked["flags"][1:][rests] |= AFTER_UNTIMED
    in_turn: Records = marked[marked["flags"] & (UNTIMED | OUT_OF_TURN) == 0]
    return in_turn


def with_device_losses(rank: Rank) -> Records:
    """The step records of a rank, with losses from device times for steps in which the host did not
    read the loss."""
    if rank.device_times is None or not len(rank.device_times):
        return rank.steps
    rows, times = _joined(rank.steps, rank.device_times)
    fresh = np.isnan(rank.steps["loss"][rows]) & ~np.isnan(times["loss"])
    if not fresh.any():
        return rank.steps
    records = rank.steps.copy()
    records["loss"][rows[fresh]] = times["loss"][fresh]
    return records


def has_losses(rank: Rank) -> bool:
    """Whether any loss of a rank is known."""
    steps = with_device_losses(rank)
    is_same = isinstance(steps, Columns) and steps.same("loss") is not None
    return not np.isnan(steps["loss"][: 1 if is_same else None]).all()


def steps_back(rank: Rank, count: int) -> int:
    """Number of newest step records that contain `count` device-timed steps, or all of them if
    fewer; 0: none."""
    rows, _ = _joined(rank.steps, rank.device_times)
    return len(rank.steps) - int(rows[-count:][0]) if len(rows) else 0


def untimed(ranks: Sequence[Rank], least: int) -> tuple[Rank, ...]:
    """The ranks on devices with fewer than `least` device-timed steps, although at least `least`
    were recorded."""
    return tuple(
        rank
        for rank in ranks
        if is_host_stamped(rank)
        and len(_joined(rank.steps, rank.device_times)[0]) < min(least, len(rank.steps))
    )


def device_times(rank: Rank) -> tuple[npt.NDArray[np.intp], Times]:
    """Indices of the rank's step records that its device timed, and these times; none of a rank
    that computes on the CPU."""
    times = rank.device_times if is_host_stamped(rank) else None
    if times is None or not len(times):
        return np.empty(0, np.intp), np.empty(0, DEVICE_DTYPE)
    return _joined(rank.steps, times)


def _device_timed(rank: Rank) -> Records:
    rows, times = _joined(rank.steps, rank.device_times)
    records = rank.steps[rows].copy()
    records["wall_ns"] = times["wall_ns"]
    records["phases"] = times["phases"]
    records["flags"] |= DEVICE_TIMED
    return records


def _joined(steps: Records, times: Times | None) -> tuple[npt.NDArray[np.intp], Times]:
    """Indices of the step records that have device times, and these times. If a
    step has several times, the first counts."""
    known = np.empty(0, DEVICE_DTYPE) if times is None else times
    sequence, first = np.unique(known["step_seq"], return_index=True)
    held = steps["seq"]
    rows = np.searchsorted(held, sequence)
    inside = rows < len(held)
    inside[inside] = held[rows[inside]] == sequence[inside]
    return rows[inside], known[first[inside]]
