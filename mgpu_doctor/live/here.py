"""What runs on this machine now."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from mgpu_doctor.case.load import NotARecording
from mgpu_doctor.case.model import Case, Outcome
from mgpu_doctor.live.frame import Frame
from mgpu_doctor.live.machine import Machine
from mgpu_doctor.live.recorder import Recorder
from mgpu_doctor.live.source import all_ranks
from mgpu_doctor.live.watch import Seen, Watch
from mgpu_doctor.recording.home import latest
from mgpu_doctor.recording.living import is_living, living
from mgpu_doctor.rules.settings import DEFAULTS, Settings

START_HINT = "No job is under observation here. To start one: mgpu-doctor run -- COMMAND"


class Live:
    """The jobs that run here: `given`, else the newest; and the machine itself. `recorder`: takes
    down what the machine does."""

    def __init__(
        self,
        given: Path | None = None,
        clock: Callable[[], float] = time.time,
        settings: Settings = DEFAULTS,
        recorder: Recorder | None = None,
    ) -> None:
        self._settings = settings
        self._machine = Machine(recorder)
        self._began = False
        self._clock = clock
        self._given = given
        self._watched = given
        self._watch = Watch(given, settings=settings) if given else None
        self._over: Seen | None = None
        self._skip = threading.Event()

    def next_job(self) -> None:
        """From the next frame on: another of the jobs that are alive."""
        self._skip.set()

    def frame(self, passed: float) -> Frame:  # noqa: ARG002 - a live source knows the time itself
        alive = living()
        self._choose(alive)
        watched, hint = self._watched, _start_hint() if self._watched is None else None
        seen = None
        try:
            seen = self._examine()
        except NotARecording as reason:
            hint = str(reason)
        case = seen.diagnosis.case if seen else None
        self._look_back(case, alive)
        ranks = seen.diagnosis.ranks if seen else ()
        devices, host = self._machine.sample(rank.pid for rank in ranks if rank.pid is not None)
        at = self._clock()
        return Frame(
            at=at,
            source=self._name(),
            diagnosis=seen.diagnosis if seen else None,
            heat=seen.heat if seen else None,
            rate=seen.rate if seen else None,
            devices=devices,
            host=host,
            hint=hint,
            age=seen.age if seen else 0.0,
            resolved=seen.resolved if seen else (),
            others=len([job for job in alive if job != watched]),
            history=self._machine.history(at, all_ranks(case)),
        )

    def close(self) -> None:
        """Let go of the drivers and of the job's boxes."""
        if self._watch is not None:
            self._watch.close()
        self._machine.close()

    def _name(self) -> str:
        name = f"live  {self._watched.name}" if self._watched else "live"
        return self._machine.named(name)

    def _look_back(self, case: Case | None, alive: list[Path]) -> None:
        """What was recorded of this machine before the first frame."""
        if not self._began and case is not None and self._watched in alive:
            self._machine.look_back(case.device_samples, case.host_samples)
        self._began = True

    def _choose(self, alive: list[Path]) -> None:
        if self._skip.is_set():
            self._skip.clear()
            if alive:
                here = alive.index(self._watched) if self._watched in alive else -1
                self._turn_to(alive[(here + 1) % len(alive)])
        elif self._watched is None and alive:
            self._turn_to(alive[0])

    def _turn_to(self, recording: Path) -> None:
        if self._watch is not None:
            self._watch.close()
        self._watch = Watch(recording, settings=self._settings)
        self._watched, self._over = recording, None

    def _examine(self) -> Seen | None:
        """A job that is over is examined once more and then kept as it is."""
        if self._watch is None or self._watched is None or self._over is not None:
            return self._over
        over = not is_living(self._watched)
        seen = self._watch.look(anew=over)
        if over and seen.diagnosis.case.job.outcome is not Outcome.RUNNING:
            self._over = replace(seen, age=0.0)
            self._watch.close()
        return seen


def _start_hint() -> str:
    last = latest()
    again = f"\nTo see the last one again: mgpu-doctor top --replay {last.name}" if last else ""
    return f"{START_HINT}{again}"
