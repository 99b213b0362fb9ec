"""Jobs on several hosts, live: a thread gathers what the hosts send, a process examines one job,
and frames show what it saw and the newest step."""

from __future__ import annotations

import queue
import textwrap
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import replace
from typing import TYPE_CHECKING

from mgpu_doctor.case.recording_case import load_recording
from mgpu_doctor.cluster.host_channel import HostState, Link
from mgpu_doctor.cluster.host_fleet import Fleet
from mgpu_doctor.examine.host_cases import (
    SECONDS_FOR_STACKS,
    explain_nothing,
    list_host_gaps,
    with_gaps,
)
from mgpu_doctor.formatting import format_seconds
from mgpu_doctor.live.frame import NO_PROGRESS, Frame
from mgpu_doctor.live.frame_source import ALL_OPTIONS, FrameOptions, all_ranks
from mgpu_doctor.live.history_collector import Collector, History
from mgpu_doctor.live.host_statuses import SILENT, list_hosts
from mgpu_doctor.live.replay import NewestSamples
from mgpu_doctor.live.seen_job import Seen
from mgpu_doctor.live.watch_process import WatchProcess
from mgpu_doctor.rules.settings import DEFAULTS, Settings

if TYPE_CHECKING:
    from mgpu_doctor.case.device_samples import DeviceSample
    from mgpu_doctor.case.model import Case, Unexamined
    from mgpu_doctor.cluster.gathered_job import GatheredJob
    from mgpu_doctor.findings import Diagnosis
    from mgpu_doctor.live.job_watch import Watch

POLL = 0.1
SECONDS_TO_ANSWER = 30.0
HINT_WIDTH = 78
"""Columns of what is shown instead of a job: those of the narrowest screen."""


class HostJobs:
    """A source that shows one of the jobs on these hosts. It closes `fleet`. `patient`: the first
    frame waits until every host has answered or failed."""

    def __init__(
        self,
        fleet: Fleet,
        settings: Settings = DEFAULTS,
        wanted: FrameOptions = ALL_OPTIONS,
        clock: Callable[[], float] = time.time,
        *,
        patient: bool = False,
    ) -> None:
        self._fleet = fleet
        self._settings = settings
        self._wanted = wanted
        self._clock = clock
        self._watched: GatheredJob | None = None
        self._watch: Watch | WatchProcess | None = None
        if wanted.more:
            self._watch = WatchProcess(settings, heated=wanted.heat)
        self._samples = _Samples()
        self._judged: tuple[Diagnosis, tuple[Unexamined, ...], Diagnosis] | None = None
        """A diagnosis, the gaps of the hosts, and the diagnosis with them. Views draw anew what is
        another object."""
        self._wanted_stacks: queue.SimpleQueue[tuple[GatheredJob, Future[bool]]]
        self._wanted_stacks = queue.SimpleQueue()
        self._skip = threading.Event()
        self._over = threading.Event()
        self._failure: BaseException | None = None
        self._announced: tuple[GatheredJob | None, int] = (None, 0)
        """The job that was shown, and its newest record, when a step was announced."""
        self._announce: Callable[[], None] | None = None
        if patient:
            fleet.wait_until_read(SECONDS_TO_ANSWER)
        self._thread = threading.Thread(target=self._gather, name="hosts", daemon=True)
        self._thread.start()

    def list_gaps(self) -> tuple[Unexamined, ...]:
        """What cannot be seen of the hosts now, why, and what to do."""
        return list_host_gaps(self._fleet.states())

    def explain_silence(self) -> str | None:
        """Why no host has answered and what to do, in a sentence for each; None if one has."""
        states = self._fleet.states()
        if self._fleet.jobs or any(state.link is Link.LIVE for state in states):
            return None
        return explain_nothing(states, list_host_gaps(states))

    def next_job(self) -> None:
        """Switches to the next job from the next frame on."""
        self._skip.set()

    def announce_steps(self, call: Callable[[], None]) -> None:
        self._announce = call

    def take_stacks(self) -> Case | None:
        job = self._watched
        if job is None or job.over:
            return None
        taken: Future[bool] = Future()
        self._wanted_stacks.put((job, taken))
        wait([taken], 2 * SECONDS_FOR_STACKS)
        return load_recording(job.folder) if taken.done() and taken.result() else None

    def frame(self, passed: float) -> Frame:  # noqa: ARG002 - a live source reads the clock itself
        if self._failure is not None:
            raise self._failure
        states, jobs = self._fleet.states(), self._fleet.jobs
        self._choose(jobs)
        seen = self._examine(states) if self._watched is not None else None
        at, gaps = self._clock(), list_host_gaps(states)
        hint = None if seen else textwrap.fill(explain_nothing(states, gaps), HINT_WIDTH)
        case = seen.diagnosis.case if seen else None
        if case is not None:
            self._samples.take(case)
        newest = self._samples.newest(at)
        return Frame(
            at=at,
            source=_name(states, over=self._watched is not None and self._watched.over),
            diagnosis=seen.diagnosis if seen else None,
            heat=seen.heat if seen else None,
            map=seen.map if seen else None,
            hosts=list_hosts(case, states) if case else (),
            going=seen.going if seen else NO_PROGRESS,
            devices=newest[-1] if newest else None,
            elsewhere=self._samples.elsewhere,
            host=case.host_samples[-1] if case and case.host_samples else None,
            hint=hint,
            followed=seen.followed if seen else (),
            others=max(0, len(jobs) - 1),
            age=seen.age if seen else 0.0,
            ranks_age=self._ranks_age(states, seen),
            gpus_age=max(0.0, at - newest[-1].at) if newest else 0.0,
            history=self._samples.history(at, case) if case and self._wanted.history else None,
        )

    def close(self) -> None:
        """Ends the channels to the hosts, and with them the agents."""
        self._over.set()
        self._thread.join()
        if self._watch is not None:
            self._watch.close()
        self._fleet.close()

    def _gather(self) -> None:
        try:
            while not self._over.is_set():
                self._fleet.poll(POLL)
                self._announce_step()
                while not self._wanted_stacks.empty():
                    job, taken = self._wanted_stacks.get()
                    taken.set_result(
                        self._fleet.take_snapshot(job, SECONDS_FOR_STACKS, self._over.is_set)
                    )
        except BaseException as error:
            self._failure = error

    def _announce_step(self) -> None:
        job, announce = self._watched, self._announce
        if job is None or announce is None:
            return
        newest = job, job.newest_record
        if newest != self._announced:
            self._announced = newest
            announce()

    def _choose(self, jobs: tuple[GatheredJob, ...]) -> None:
        wanted = self._watched or next(iter(jobs), None)
        if self._skip.is_set() and jobs:
            here = jobs.index(self._watched) if self._watched in jobs else -1
            wanted = jobs[(here + 1) % len(jobs)]
        self._skip.clear()
        if wanted is not self._watched and wanted is not None:
            self._watched = wanted
            self._samples = _Samples()
            if isinstance(self._watch, WatchProcess):
                self._watch.turn_to(wanted.folder)
                return
            from mgpu_doctor.live.job_watch import Watch

            if self._watch is not None:
                self._watch.close()
            self._watch = Watch(wanted.folder, settings=self._settings, heated=self._wanted.heat)

    def _examine(self, states: tuple[HostState, ...]) -> Seen:
        assert self._watch is not None
        assert self._watched is not None
        # Ranks of a silent host seem to stand still: that is no hang.
        mine = [state for state in states if state.node in self._watched.hosts]
        seen = self._watch.poll(judging=all(_is_heard(state) for state in mine))
        return replace(seen, diagnosis=self._with_gaps(seen.diagnosis, list_host_gaps(states)))

    def _with_gaps(self, diagnosis: Diagnosis, gaps: tuple[Unexamined, ...]) -> Diagnosis:
        known = self._judged
        if known is None or known[0] is not diagnosis or known[1] != gaps:
            whole = replace(diagnosis, unexamined=with_gaps(diagnosis.unexamined, gaps))
            known = self._judged = diagnosis, gaps, whole
        return known[2]

    def _ranks_age(self, states: tuple[HostState, ...], seen: Seen | None) -> float:
        """Seconds since the ranks were read: those of the job's host that was silent longest."""
        if seen is None or self._watched is None or self._watched.over:
            return 0.0
        mine = self._watched.hosts
        ages = [state.age or 0.0 for state in states if state.node in mine]
        return max([seen.read, *(age for age in ages if age >= SILENT)])


class _Samples:
    """The samples of a job's GPUs and hosts. A case is taken once."""

    def __init__(self) -> None:
        self._collector = Collector()
        self._collected: dict[tuple[type, str | None], float] = {}
        self._case: Case | None = None
        self._devices = NewestSamples(())
        self._newest: tuple[DeviceSample, ...] = ()
        self.elsewhere: tuple[DeviceSample, ...] = ()
        """All but the last of the newest samples; the same object as long as they are the same."""

    def take(self, case: Case) -> None:
        """Adds the samples so far; each is collected once, in the order of its host's clock."""
        if case is self._case:
            return
        self._case = case
        self._devices = NewestSamples(case.device_samples)
        for sample in case.device_samples:
            if self._is_new((type(sample), sample.host), sample.at):
                self._collector.add_devices(sample)
        for reading in case.host_samples:
            if self._is_new((type(reading), reading.host), reading.at):
                self._collector.add_host(reading)

    def newest(self, at: float) -> tuple[DeviceSample, ...]:
        """The newest sample of each host's GPUs."""
        newest = self._devices.until(at)
        if [*map(id, newest)] != [*map(id, self._newest)]:
            self._newest, self.elsewhere = newest, newest[:-1]
        return self._newest

    def history(self, at: float, case: Case) -> History:
        return self._collector.history(at, all_ranks(case))

    def _is_new(self, whose: tuple[type, str | None], at: float) -> bool:
        new = at > self._collected.get(whose, 0.0)
        if new:
            self._collected[whose] = at
        return new


def _name(states: tuple[HostState, ...], *, over: bool) -> str:
    """The hosts in a few words: how many are seen, and what is wrong with the first that is not.
    `over`: the job that is shown has ended."""
    live = [state for state in states if _is_heard(state)]
    missing = [state for state in states if not _is_heard(state)]
    text = f"{'finished' if over else 'live'}: {len(live)} of {len(states)} hosts"
    for state in missing[:1]:
        reason = state.trouble.reason if state.trouble else "no answer yet"
        if _is_silent(state) and state.age is not None:
            reason = f"silent for {format_seconds(state.age)}"
        text += f"; {state.name}: {reason}"
    return text + (f"; {len(missing) - 1} more" if len(missing) > 1 else "")


def _is_heard(state: HostState) -> bool:
    return state.link is Link.LIVE and not _is_silent(state)


def _is_silent(state: HostState) -> bool:
    return state.link is Link.LIVE and state.age is not None and state.age >= SILENT
