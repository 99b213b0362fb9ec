"""Notices that an observed job makes no progress, and records the evidence while it exists.

The ranks' black boxes show that nothing moves; their stacks show whether it is a hang: a rank that
compiles, loads or computes uses CPU time. The job itself is not touched.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from mgpu_doctor.launch.run_recording import RunRecording
from mgpu_doctor.recording.rank_pulse import Pulse, pulses

EVERY = 1.0
LEAST = 5.0
"""Minimum seconds without progress before stacks are sampled."""
STEPS = 3.0
"""The same in multiples of the longest step (99th percentile), if that is more."""
START = 30.0
"""The same in seconds while no rank has completed a step: starting can take long."""
LASTING = 30.0
"""Seconds after which a hang is unlikely to end by itself."""
LONGEST = 600.0
"""Maximum seconds until the next sample if the last one showed no hang."""


@dataclass(frozen=True, slots=True)
class Alarm:
    """Callbacks for a hang; each is called once, with the seconds it has lasted."""

    hung: Callable[[float], None]
    lasts: Callable[[float], None]
    """Called when the hang has lasted for LASTING seconds."""


class HangWatchdog:
    """Watches one job from a thread of its own."""

    def __init__(
        self, recording: RunRecording, pid: int, over: threading.Event, alarm: Alarm
    ) -> None:
        self._recording, self._pid, self._over, self._alarm = recording, pid, over, alarm
        self._thread = threading.Thread(target=self._run, name="hang-watchdog", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        last = self._pulses()
        while not self._over.wait(EVERY):
            now = self._pulses()
            if now == last and any(not pulse.over for pulse in now.values()):
                self._while_still(last)
                last = self._pulses()
            else:
                last = now

    def _while_still(self, last: Mapping[str, Pulse]) -> None:
        """Waits until the job makes progress. Just before each alarm, a sample confirms the
        hang."""
        since = time.monotonic() - EVERY
        alarms = [self._alarm.hung, self._alarm.lasts]
        look_at: float | None = None
        while alarms and not self._over.wait(EVERY) and self._pulses() == last:
            still = time.monotonic() - since
            if still >= LEAST and look_at is None:
                look_at = max(LEAST, self._patience())
            if look_at is None or still < look_at:
                continue
            look_at = still + min(still, LONGEST)
            if self._stands(last):
                alarms.pop(0)(time.monotonic() - since)
                look_at = max(LASTING, still + EVERY)
        while not self._over.wait(EVERY) and self._pulses() == last:
            pass  # both alarms were raised

    def _pulses(self) -> Mapping[str, Pulse]:
        return {} if self._recording.boxes is None else pulses(self._recording.boxes)

    def _patience(self) -> float:
        """Returns the seconds without progress before stacks are sampled."""
        from mgpu_doctor.launch.hang_evidence import longest_step

        longest = None if self._recording.boxes is None else longest_step(self._recording.boxes)
        return START if longest is None else STEPS * longest

    def _stands(self, last: Mapping[str, Pulse]) -> bool:
        from mgpu_doctor.launch.hang_evidence import keep

        def unchanged() -> bool:
            return not self._over.wait(EVERY) and self._pulses() == last

        return keep(self._recording, self._pid, unchanged)
