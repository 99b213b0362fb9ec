"""Notices that an observed job makes no progress, and records the evidence while it exists.

The ranks' black boxes show that nothing moves; their stacks show whether it is a hang: a rank that
compiles, loads or computes uses CPU time. The job itself is not touched.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

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
        boxes = self._recording.boxes
        own = [] if boxes is None else [boxes]
        last = _read_pulses(own)
        while not self._over.wait(EVERY):
            now = _read_pulses(own)
            if now == last and any(not pulse.over for pulse in now.values()):
                self._while_still()
                last = _read_pulses(own)
            else:
                last = now

    def _while_still(self) -> None:
        """Waits until the job makes progress, on any rank of this host: also on those of other
        tasks, whose boxes may lie elsewhere. Just before each alarm, a sample confirms the hang."""
        since = time.monotonic() - EVERY
        folders = self._recording.list_box_folders()
        last = _read_pulses(folders)

        def is_still() -> bool:
            return not self._over.wait(EVERY) and _read_pulses(folders) == last

        alarms = [self._alarm.hung, self._alarm.lasts]
        look_at: float | None = None
        while alarms and is_still():
            still = time.monotonic() - since
            if still >= LEAST and look_at is None:
                look_at = max(LEAST, _find_patience(folders))
            if look_at is None or still < look_at:
                continue
            look_at = still + min(still, LONGEST)
            if self._hangs(is_still):
                alarms.pop(0)(time.monotonic() - since)
                look_at = max(LASTING, still + EVERY)
        while is_still():
            pass  # both alarms were raised

    def _hangs(self, is_still: Callable[[], bool]) -> bool:
        from mgpu_doctor.launch.hang_evidence import keep

        return keep(self._recording, self._pid, is_still)


def _read_pulses(folders: Sequence[Path]) -> Mapping[str, Pulse]:
    return {name: pulse for folder in folders for name, pulse in pulses(folder).items()}


def _find_patience(folders: Sequence[Path]) -> float:
    """Seconds without progress before stacks are sampled."""
    from mgpu_doctor.launch.hang_evidence import longest_step

    longest = longest_step(folders)
    return START if longest is None else STEPS * longest
