"""Polls how far the device has got while the host is blocked: the newest mark that it has passed.

In a hang on GPUs, all hosts usually wait for their own device in the same call. The devices differ:
most wait for other ranks, and one is still busy. Therefore a thread of the probe polls the marks of
the `DeviceTimer` once a second. While the training sets marks, it does nothing. If no mark was set
since the last poll, it queries which of their events have completed, without waiting, and writes
the position into the header of the box.

Only turns that are timed by the device have marks in its queue; in other turns the position is
unknown.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from . import layout, masked_threads
from .phase_ledger import PENDING, PHASE_WORD, SHOWN, SINCE_WORD

if TYPE_CHECKING:
    from .device_clock import DeviceTimer
    from .device_tape import Tape
    from .phase_ledger import Words
    from .probe_context import ProbeContext
    from .step_segments import Step

POLL_SECONDS = 1.0
"""Seconds between two polls."""
LONGEST_POLL = 2.0
"""Seconds; a poll that takes longer is the last. Querying an event holds the GIL: if a driver does
not answer at once, other threads of the program wait. A shorter delay may be due to a busy
machine."""

_STATE_WORD = layout.DEVICE_LOOK // 8
_BEGUN_WORD = layout.DEVICE_LOOK_BEGUN // 8
_ENDED_WORD = layout.DEVICE_LOOK_ENDED // 8
_PHASE_WORD = layout.DEVICE_PHASE // 8
_TURN_WORD = layout.DEVICE_TURN // 8
_MARKS_WORD = layout.DEVICE_MARKS // 8
_SINCE_WORD = layout.DEVICE_SINCE // 8


class DevicePosition(NamedTuple):
    """The position of the device among the marks of a turn."""

    turn: int
    """The turn's key, which is equal on all ranks."""
    step: int
    """Steps that were recorded before it."""
    marks: int
    """Marks of the turn that the device has passed."""
    phase: int
    """The phase after the last passed mark, an index of `layout.PHASES`."""
    has_more: bool
    """Whether the next mark is in the device's queue already."""


def find_position(timer: DeviceTimer, host_phase: int) -> DevicePosition | None:
    """The device's position; None: it is not in a timed turn, or its events cannot be queried now.
    `host_phase`: the host's current phase. Called from another thread than the training one: the
    result is valid only if that one has set no mark meanwhile."""
    tapes = timer.tapes()
    reached = timer.reached
    if not tapes or not reached(tapes[0].events[0]):
        return None
    tape = next(tape for tape in reversed(tapes) if reached(tape.events[0]))
    events = list(tape.events)  # of the turn's beginning, and of each mark
    passed, missed = 0, len(events)
    while missed - passed > 1:
        middle = (passed + missed) // 2
        if reached(events[middle]):
            passed = middle
        else:
            missed = middle
    if missed < len(events):
        return DevicePosition(tape.key, tape.step, passed, _phase_after(tape, passed), True)
    if not timer.is_open(tape):
        return None
    return DevicePosition(tape.key, tape.step, passed, host_phase, False)


def _phase_after(tape: Tape, passed: int) -> int:
    """The phase between a turn's mark number `passed` and the next one, from a copy of the step
    engine in which everything else takes no time."""
    if tape.engine is None:
        return layout.OTHER
    steps: list[Step] = []
    engine = tape.engine.twin(0, steps.append)
    marks = list(zip(tape.marks, tape.data))  # noqa: B905 - the host may be about to set a mark
    for mark, data in marks[:passed]:
        mark(engine, 0, *data)
    ledger = engine.ledger
    if ledger.phase != PENDING:
        phase: int = SHOWN[ledger.phase]
        return phase
    for mark, data in marks[passed:]:  # only a later mark decides which phase it is
        mark(engine, 1, *data)
        explained = next((phase for phase in range(PENDING) if ledger.booked[phase]), None)
        if explained is not None:
            return explained
    return layout.OTHER


class DeviceWatch:
    """Polls the marks of one timer and writes the position into the header words of the box."""

    def __init__(self, timer: DeviceTimer, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._timer = timer
        self._clock = clock
        self._host: tuple[object, ...] = ()
        """What `_host_marks` returned at the last poll."""
        self._position: DevicePosition | None = None
        self._since = 0

    def poll(self, words: Words) -> None:
        """Writes the device's position, if the training has set no mark since the last poll. Raises
        RuntimeError if the device has failed."""
        now = self._clock()
        host = self._host_marks(words)
        if host != self._host:
            self._host, self._position = host, None
            words[_STATE_WORD] = layout.HOST_MOVES
            return
        position = find_position(self._timer, words[PHASE_WORD] & 0xFF)
        if host != self._host_marks(words):
            return  # the training went on meanwhile and may have reused the events
        if position != self._position:
            self._position, self._since = position, now
        words[_BEGUN_WORD] = now
        if position is not None:
            words[_PHASE_WORD] = position.phase | position.step << 8
            words[_TURN_WORD] = position.turn
            words[_MARKS_WORD] = position.marks | position.has_more << 32
            words[_SINCE_WORD] = self._since
        words[_STATE_WORD] = layout.NOT_TIMED if position is None else layout.POSITION_KNOWN
        words[_ENDED_WORD] = now

    def _host_marks(self, words: Words) -> tuple[object, ...]:
        tapes = self._timer.tapes()
        newest = tapes[-1] if tapes else None
        marks = 0 if newest is None else len(newest.events)
        return words[SINCE_WORD], words[PHASE_WORD], len(tapes), id(newest), marks


def start(context: ProbeContext, timer: DeviceTimer) -> None:
    """Starts a thread that polls until the timer is retired. If no thread can be started, the
    training goes on without it."""
    try:
        masked_threads.start(_poll, context, timer)
    except RuntimeError:
        return


def _poll(context: ProbeContext, timer: DeviceTimer) -> None:
    try:
        if not timer.enter_thread():
            return
    except RuntimeError:  # the device has failed; the training will hear of it
        return
    watch = DeviceWatch(timer)
    while True:
        time.sleep(POLL_SECONDS)
        box = context.box
        if not context.on or context.device_timer is not timer:
            return
        if box is None:
            continue
        began = time.monotonic()
        try:
            watch.poll(box.words)
        except RuntimeError:  # as above
            return
        if time.monotonic() - began > LONGEST_POLL:
            return
