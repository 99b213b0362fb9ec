"""The jobs running on this machine now."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from mgpu_doctor.live.frame import NO_PROGRESS, Frame
from mgpu_doctor.live.frame_source import ALL_OPTIONS, FrameOptions, Pace, all_ranks
from mgpu_doctor.live.gpu_watch import GpuWatch
from mgpu_doctor.live.machine_sampler import MachineSampler, numpy_on_one_thread
from mgpu_doctor.recording.home import latest
from mgpu_doctor.recording.live_recordings import is_living, living
from mgpu_doctor.rules.settings import DEFAULTS, Settings

if TYPE_CHECKING:
    from mgpu_doctor.case.model import Case
    from mgpu_doctor.live.host_statuses import HostStatus
    from mgpu_doctor.live.job_watch import Watch
    from mgpu_doctor.live.machine_recorder import Recorder
    from mgpu_doctor.live.seen_job import Seen

FINDING = 0.0002
"""Share of a core for finding running jobs."""
UNFOUND = 5.0
"""Seconds after which they are searched for in any case."""
START_HINT = "No job is under observation here. To start one: mgpu-doctor run -- COMMAND"


class LiveJobs:
    """A source that shows this machine and one of its jobs: `given`, else the newest. `recorder`:
    records samples of the machine. The code that examines jobs is imported when there is one."""

    def __init__(
        self,
        given: Path | None = None,
        clock: Callable[[], float] = time.time,
        settings: Settings = DEFAULTS,
        recorder: Recorder | None = None,
        wanted: FrameOptions = ALL_OPTIONS,
    ) -> None:
        self._settings = settings
        self._wanted = wanted
        self._machine = MachineSampler(recorder, wanted)
        self._gpus = GpuWatch(settings)
        self._began = False
        self._first: Future[Frame] | None = None
        self._clock = clock
        self._watched = given
        self._watch: Watch | None = None
        self._over: Seen | None = None
        self._shown = False
        """Whether the watched job was examined."""
        self._lost: str | None = None
        """The name of the job shown last, if its recording has been deleted meanwhile."""
        self._skip = threading.Event()
        self._alive: list[Path] = []
        self._finding = Pace(time.monotonic, time.thread_time, UNFOUND, FINDING)

    def begin(self) -> None:
        """Starts to read the GPUs, and makes the first frame in a thread of its own while the
        screen's modules are loaded; waits for neither. That thread imports little: two threads that
        import take turns, and each turn costs time."""
        self._machine.begin()
        self._first = ThreadPoolExecutor(1).submit(self._make_frame)

    def next_job(self) -> None:
        """Switches to the next running job from the next frame on."""
        self._skip.set()

    def frame(self, passed: float) -> Frame:  # noqa: ARG002 - a live source reads the clock itself
        first, self._first = self._first, None
        return first.result() if first is not None else self._make_frame()

    def _make_frame(self) -> Frame:
        alive = self._living()
        self._choose(alive)
        watched = self._watched
        seen, hint = self._examine(watched) if watched is not None else (None, self._hint())
        case = seen.diagnosis.case if seen else None
        self._look_back(case, alive)
        ranks = seen.diagnosis.ranks if seen else ()
        devices, host = self._machine.sample(rank.pid for rank in ranks if rank.pid is not None)
        self._gpus.add(devices)
        at = self._clock()
        return Frame(
            at=at,
            source=self._name(),
            diagnosis=seen.diagnosis if seen else None,
            heat=seen.heat if seen else None,
            map=seen.map if seen else None,
            hosts=_hosts(case) if case else (),
            going=seen.going if seen else NO_PROGRESS,
            devices=devices,
            host=host,
            xids=self._machine.xids,
            hint=hint,
            age=seen.age if seen else 0.0,
            ranks_age=seen.read if seen else 0.0,
            over=self._over is not None,
            gpus_age=self._machine.devices_age,
            followed=seen.followed if seen else (),
            others=len([job for job in alive if job != watched]),
            history=self._machine.history(at, all_ranks(case)),
            hardware=self._gpus.judge(),
            processes=() if seen else self._machine.list_processes(),
        )

    def close(self) -> None:
        """Closes the drivers and the job's boxes, once the first frame that was begun is made."""
        if self._first is not None:
            wait([self._first])
        if self._watch is not None:
            self._watch.close()
        self._machine.close()

    def _living(self) -> list[Path]:
        """Returns the running jobs. Searched in every frame while there is no job to show."""
        if self._watched is None or self._skip.is_set() or self._finding.due():
            self._finding.begin()
            self._alive = living()
            self._finding.end()
        return self._alive

    def _name(self) -> str:
        state = "live" if self._over is None else "finished"
        return self._machine.named(f"{state}  {self._watched.name}" if self._watched else state)

    def _look_back(self, case: Case | None, alive: list[Path]) -> None:
        """Reads what was recorded on this machine before the first frame."""
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
        self._watched, self._watch, self._over = recording, None, None
        self._shown, self._lost = False, None

    def _lose(self, recording: Path) -> None:
        """Shows no job until there is another one."""
        if self._watch is not None:
            self._watch.close()
        self._watched, self._watch, self._lost = None, None, recording.name

    def _hint(self) -> str:
        gone = f"The recording of {self._lost} has been deleted.\n" if self._lost else ""
        return f"{gone}{_start_hint()}"

    def _examine(self, recording: Path) -> tuple[Seen | None, str | None]:
        """Returns the examined job, or why there is none. A finished job is examined once more and
        then kept unchanged."""
        if self._over is not None:
            return self._over, None
        with numpy_on_one_thread():
            from mgpu_doctor.case.model import Outcome
            from mgpu_doctor.case.recording_case import NotARecording
            from mgpu_doctor.live.job_watch import Watch

        if self._watch is None:
            self._watch = Watch(recording, settings=self._settings, heated=self._wanted.heat)
        over = not is_living(recording)
        try:
            seen = self._watch.poll(anew=over)
        except NotARecording as reason:
            if not self._shown or recording.exists():
                return None, str(reason)
            self._lose(recording)
            return None, self._hint()
        self._shown = True
        if over and seen.diagnosis.case.job.outcome is not Outcome.RUNNING:
            self._over = replace(seen, age=0.0, read=0.0)
            self._watch.close()
        return seen, None


def _hosts(case: Case) -> tuple[HostStatus, ...]:
    from mgpu_doctor.live.host_statuses import list_hosts

    return list_hosts(case)


def _start_hint() -> str:
    last = latest()
    again = f"\nTo see the last one again: mgpu-doctor top --replay {last.name}" if last else ""
    return f"{START_HINT}{again}"
