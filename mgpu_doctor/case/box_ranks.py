"""Converts black boxes to ranks: what each was doing, and how it ended if that is known."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

import msgspec
import numpy as np
from mgpu_probes.inprocess.layout import BOX_SUFFIX, PHASES
from msgspec import Meta

from mgpu_doctor.case.captured_console import MESSAGE_LIMIT, shortened
from mgpu_doctor.case.lenient_json import Json, reader
from mgpu_doctor.case.model import (
    DevicePosition,
    Error,
    Event,
    Now,
    ProcessEnd,
    Rank,
    Records,
    State,
    Wait,
)
from mgpu_doctor.case.outcomes import end_state, exit_status, living_state, without_rest
from mgpu_doctor.case.process_metadata import ProcessMetadata, process_metadata
from mgpu_doctor.case.this_machine import Here
from mgpu_doctor.case.untrusted_json import number, text
from mgpu_doctor.recording.box import Box
from mgpu_doctor.recording.boxheader import Identity
from mgpu_doctor.recording.device_position import NoPosition

UNKNOWN_HOST = ""
_TICKS = os.sysconf("SC_CLK_TCK")


Exits = Mapping[tuple[str, int], list[tuple[ProcessEnd, int | None]]]
"""(host, pid) -> how it ended and its start ticks, for each process that had this pid."""


@dataclass(frozen=True, slots=True)
class Moment:
    """Facts from outside the boxes. `until`: nothing later counts (replay)."""

    here: Here
    exits: Exits
    over: bool
    """The recording says that the job has ended."""
    until: float | None = None
    over_on: Mapping[str, bool] = field(default_factory=dict)
    """Host -> whether the job has ended on it, where each node says so by itself."""


@dataclass(frozen=True, slots=True)
class _Clock:
    """The clock of a box, up to the moment of the view."""

    offset: float
    until: float | None

    def at(self, nanoseconds: int) -> float:
        """Its monotonic time in seconds since the epoch."""
        return nanoseconds / 1e9 + self.offset

    def has_come(self, at: float) -> bool:
        """Whether a moment, in seconds since the epoch, is not after that of the view."""
        return self.until is None or at <= self.until

    def past(self, records: Records) -> Records:
        """The records that had ended by then."""
        if self.until is None or not len(records):
            return records
        known = records["end_ns"] / 1e9 + self.offset <= self.until
        count = int(np.count_nonzero(known))
        if known[:count].all():  # the usual case, which copies nothing
            return records[:count]
        return records[known]


def rank_of(box: Box, moment: Moment) -> Rank | None:
    """The rank that wrote the box; None where it had not begun at the moment of the view."""
    identity, clock = box.identity, _Clock(box.clock_offset, moment.until)
    begun = identity.realtime_ns / 1e9
    if not clock.has_come(begun):
        return None
    exited = _seen_exit(box, moment)
    left_at = None if box.ended_ns is None else clock.at(box.ended_ns)
    if left_at is not None and not clock.has_come(left_at):
        left_at = None
    steps = clock.past(box.steps)
    gone = _gone(box, moment, exited, left_at)
    metadata = _metadata(box)
    code, number_ = exit_status(box, metadata, exited, left_at)
    error = _error(box, left_at, clock) if gone and code != 0 else None
    if error is not None and error.type == "SystemExit" and code is None:
        error = None  # it was caught: the process ended in another way
    now = _now(box, steps, clock)
    state = (
        end_state(code, number_, error, orderly=left_at is not None) if gone else living_state(now)
    )
    is_here = not gone and moment.until is None and moment.here.was(box)
    return Rank(
        rank=identity.rank,
        local_rank=identity.local_rank,
        world_size=identity.world_size,
        host=text(identity.host, 64) or UNKNOWN_HOST,
        pid=identity.pid,
        attempt=identity.attempt,
        stage=identity.stage,
        device=text(metadata.device, 64),
        state=state,
        exit_code=code if gone else None,
        signal=number_ if gone else None,
        ended=(exited.at if exited else left_at) if gone else None,
        started=begun,
        metadata=metadata,
        device_times=box.device_times,
        device_position=position_of(box, moment.until),
        steps=without_rest(steps) if state is State.EXITED else steps,
        history=clock.past(box.history),
        events=_events(box, clock),
        now=now,
        error=error,
        probe_cost=box.probe_cost_ns / 1e9,
        lost_records=box.lost + box.overwritten,
        clock_offset=box.clock_offset,
        took_leave=gone and left_at is not None,
        is_here=is_here and moment.here.is_of_its_owner(identity.pid),
        process_started=_process_started(identity),
    )


def _process_started(identity: Identity) -> float | None:
    """When the process started, in seconds since the epoch. Ticks are counted since boot, as the
    monotonic clock is, which stops while the machine is suspended: then the process seems younger
    than it is."""
    if identity.start_ticks is None:
        return None
    age = identity.monotonic_ns / 1e9 - identity.start_ticks / _TICKS
    return identity.realtime_ns / 1e9 - max(0.0, age)


def _metadata(box: Box) -> ProcessMetadata:
    """The metadata that the probe recorded. The socket at which a rank answers lies beside its box,
    whatever path the box names: it could be any socket of the reader's."""
    metadata = process_metadata(box.birth)
    if metadata.worker_socket is None:
        return metadata
    beside = f"{box.path.removesuffix(BOX_SUFFIX)}.sock"
    return msgspec.structs.replace(metadata, worker_socket=beside)


def position_of(box: Box, until: float | None = None) -> DevicePosition | NoPosition:
    """How far the device got; `until`: nothing later counts."""
    position, clock = box.device_position, _Clock(box.clock_offset, until)
    if isinstance(position, NoPosition):
        return position
    seen = clock.at(position.seen_ns)
    if not clock.has_come(seen):
        return NoPosition.HOST_MOVES
    return DevicePosition(
        turn=position.turn,
        step=position.step,
        marks=position.marks,
        phase=position.phase,
        has_more=position.has_more,
        since=clock.at(position.since_ns),
        seen=seen,
    )


def _seen_exit(box: Box, moment: Moment) -> ProcessEnd | None:
    """How the process ended as seen from outside; its start time identifies a reused pid."""
    for end, ticks in reversed(moment.exits.get((box.identity.host, box.identity.pid), [])):
        if None not in (ticks, box.identity.start_ticks) and ticks != box.identity.start_ticks:
            continue
        if moment.until is None or end.at <= moment.until:
            return end
    return None


def _gone(box: Box, moment: Moment, exited: ProcessEnd | None, left_at: float | None) -> bool:
    if exited is not None:
        return True
    if moment.until is not None:
        return left_at is not None
    if moment.here.was(box):
        return not moment.here.has_process(box)
    over = moment.over_on.get(box.identity.host, moment.over)
    return over or left_at is not None or moment.here.booted_since(box)


class _Traceback(str):
    """The two ends of a traceback, made harmless."""

    __slots__ = ()

    @classmethod
    def from_json(cls, value: Json) -> _Traceback:
        """The text without control characters. Raises ValueError if it is not a text."""
        if not isinstance(value, str):
            raise ValueError("it is not a text")
        return cls(shortened(value))


class _Wait(msgspec.Struct):
    """The wait for other ranks that the exception ended, in monotonic nanoseconds."""

    since: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
    until: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
    site: Annotated[str, Meta(max_length=300)] | None = None


class _LastWords(msgspec.Struct):
    """The exception that ended a rank, as the rank wrote it."""

    type: Annotated[str, Meta(max_length=200)] | None = None
    message: Annotated[str, Meta(max_length=MESSAGE_LIMIT)] = ""
    file: Annotated[str, Meta(max_length=1000)] | None = None
    line: Annotated[int, Meta(ge=0, le=1 << 31)] | None = None
    function: Annotated[str, Meta(max_length=200)] | None = None
    traceback: _Traceback = _Traceback()
    wait: _Wait | None = None


_read_last_words = reader(_LastWords)


def _error(box: Box, left_at: float | None, clock: _Clock) -> Error | None:
    words = _read_last_words(box.last_words) or _LastWords()
    if box.state != "exception" and words.type is None:
        return None
    raised = [clock.at(event.start_ns) for event in box.events if event.kind == "exception"]
    return Error(
        type=words.type or "unknown exception",
        message=words.message,
        file=words.file,
        line=words.line,
        function=words.function,
        traceback=str(words.traceback),
        at=number(raised[-1]) if raised else left_at,
        wait=_interrupted_wait(words.wait, clock),
    )


def _interrupted_wait(wait: _Wait | None, clock: _Clock) -> Wait | None:
    if wait is None or wait.until < wait.since:
        return None
    seconds = (wait.until - wait.since) / 1e9
    return Wait(clock.at(wait.since), seconds, text(wait.site, 300))


def _events(box: Box, clock: _Clock) -> tuple[Event, ...]:
    events = (
        Event(
            kind=event.kind,
            at=clock.at(event.start_ns),
            step=event.step,
            seconds=event.duration_ns / 1e9,
            value=event.value,
            text=event.text,
        )
        for event in box.events
    )
    return tuple(event for event in events if clock.has_come(event.at))


def _now(box: Box, steps: Records, clock: _Clock) -> Now | None:
    """The rank's activity by its box, or, in a replay, by the steps around the moment."""
    now = box.now
    if now is not None and clock.has_come(since := clock.at(now.since_ns)):
        return Now(now.phase, since, now.step, text(now.site, 300), now.group_seq)
    if clock.until is None or not len(steps):
        return None
    shares = np.nan_to_num(steps["phases"][-1])
    longest = PHASES[int(np.argmax(shares))] if shares.any() else "other"
    return Now(longest, clock.at(int(steps["end_ns"][-1])), int(steps["step"][-1]) + 1, None, None)
