"""The marks that a program sets itself, with `mgpu_doctor.phase` and `mgpu_doctor.step`.

They take the same way as the marks of hooks, `ProbeContext.mark`. `mgpu_doctor.loop_marks` has
checked names and nesting before it calls this.
"""

from __future__ import annotations

import os

from . import layout, probe_start
from .probe_context import ProbeContext
from .step_engine import Steps
from .step_marks import PHASE_BEGINS
from .training_objects import UnseenWaits

_EVENTS = {"checkpoint": layout.SAVED, "evaluation": layout.EVALUATED}
_WORTH_AN_EVENT_NS = 1_000_000
"""As for hooks: a pause of 1 ms is an event, a shorter one only counts in its step."""
_DEVICES = ("/dev/nvidia", "/dev/kfd", "/dev/dri/", "/dev/accel", "/dev/vfio/")
"""Device files of GPUs and other accelerators. NVML opens some too and computes nothing: even so
the phases count as timed by a host whose device may work asynchronously."""


class ManualMarks:
    """Sets the marks of a program on the probe of its process. Only the training thread's count."""

    def __init__(self, context: ProbeContext) -> None:
        self._context = context
        self._in_phase = False
        self._stepped = False
        self._phase = ""
        self._began = 0

    def begin(self, phase: str) -> None:
        """The program begins this phase."""
        context = self._context
        try:
            if context.mine():
                self._in_phase, self._phase = True, phase
                self._began = now = context.clock()
                context.mark(PHASE_BEGINS[phase], now)
        except Exception as trouble:
            context.fail(trouble)

    def end(self) -> None:
        """The phase ends."""
        context = self._context
        try:
            if self._in_phase and context.mine():
                self._in_phase = False
                now = context.clock()
                context.mark(Steps.phase_ends, now)
                if self._phase in _EVENTS and now - self._began >= _WORTH_AN_EVENT_NS:
                    context.event(_EVENTS[self._phase], self._began, now - self._began)
        except Exception as trouble:
            context.fail(trouble)

    def step(self) -> None:
        """A turn of the loop has ended; the calling thread trains."""
        context = self._context
        try:
            if context.adopt():
                if not self._stepped:
                    self._take_first_step()
                context.mark(Steps.turn_ends, context.clock())
        except Exception as trouble:
            context.fail(trouble)

    def forget(self) -> None:
        """In a forked child: nothing was marked here so far."""
        self._in_phase = self._stepped = False

    def _take_first_step(self) -> None:
        context = self._context
        self._stepped = context.trained = True
        if context.accelerator is None and context.device_timer is None:
            context.objects.note_unseen_waits(UnseenWaits.UNMARKED)
            self._find_clock()
            if self._find_clock not in context.on_step:
                context.on_step.append(self._find_clock)

    def _find_clock(self) -> None:
        """Notes that the host does the work itself, as long as no device was opened or used."""
        context = self._context
        if context.accelerator is not None or context.device_timer is not None:
            return
        if _has_open_device():
            context.device_clock = "host"
        elif context.device_clock == "host":
            context.computes_on(None)


def _has_open_device() -> bool:
    """Whether this process has a file of an accelerator open; True if that cannot be read."""
    folder = "/proc/self/fd"
    try:
        for name in os.listdir(folder):
            try:
                if os.readlink(f"{folder}/{name}").startswith(_DEVICES):
                    return True
            except OSError:
                continue  # it was closed
    except OSError:
        return True
    return False


def connect() -> ManualMarks:
    """The marks of this process, whose probe it starts."""
    marks = ManualMarks(probe_start.start())
    os.register_at_fork(after_in_child=marks.forget)
    return marks
