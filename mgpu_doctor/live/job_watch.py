"""Watches one running job: reads its recording anew, diagnoses it, and follows its findings.

Boxes are read incrementally. What costs more than a small share of the time is done less often than
the screen is drawn: the diagnosis may be some seconds old, the facts are fresh.

Known failures in its console output are shown as events as they appear; only the newest output
is read. The verdict on them is left to `diagnose`, which reads all of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from mgpu_doctor.case.captured_console import read_streams
from mgpu_doctor.case.log_case import signs_of
from mgpu_doctor.case.log_matches import LogMatch
from mgpu_doctor.case.model import Case, State
from mgpu_doctor.case.recording_case import load_recording
from mgpu_doctor.diagnose import diagnose
from mgpu_doctor.findings import Diagnosis, Followed, RankSummary
from mgpu_doctor.live.finding_history import update_history
from mgpu_doctor.live.frame import Progress
from mgpu_doctor.live.frame_source import Pace
from mgpu_doctor.live.job_progress import measure_progress
from mgpu_doctor.live.step_heatmap import Heatmap, make_heatmap
from mgpu_doctor.recording.box import Box, BoxFile, BoxReader, read_box
from mgpu_doctor.rules.settings import DEFAULTS, Settings

MOST_BYTES = 1 << 18
"""Of each stream: what a job prints between two looks is far less."""
MOST_SIGNS = 256
Key = tuple[str, int | None, str]
JUDGING = 0.002
"""Of a core: what diagnosing may take. It is done anew after `LONGEST_REST` whatever it costs, and
at once where something has turned."""
LONGEST_UNREAD = 15.0
"""Seconds after which the boxes are read again whatever it costs."""
LONGEST_PAST = 30.0
"""Seconds by which the history of the whole run may be older than the steps, which reach back
further than that one by one. Of all ranks alike: what they did in the whole run is compared."""
MOST_READERS = 256
"""Boxes kept open; of a job with more ranks the rest are opened anew each time."""
LIVES = (State.RUNNING, State.WAITING)
JUDGED = (State.HUNG.value, State.WAITING.value)


class ConsoleSigns:
    """For one thread. `look` costs some tens of milliseconds where anything was printed since."""

    def __init__(self, recording: Path, clock: Callable[[], float] = time.time) -> None:
        self._recording = recording
        self._clock = clock
        self._known: dict[Key, LogMatch] = {}
        self._seen: Mapping[str, list[str]] | None = None

    @property
    def known(self) -> tuple[LogMatch, ...]:
        """In the order in which they were found."""
        return tuple(self._known.values())

    def poll(self) -> None:
        """What a line without a time stamp tells happened between the looks before and after it;
        of what was there at the first look nobody knows when."""
        streams = read_streams(self._recording, MOST_BYTES)
        if streams == self._seen:
            return
        at = None if self._seen is None else self._clock()
        self._seen = streams
        for sign in signs_of(streams):
            key = (sign.signature, sign.rank, sign.source)
            before = self._known.get(key)
            if before is not None:
                most = max(before.count, sign.count)
                self._known[key] = replace(before, count=most)
            elif len(self._known) < MOST_SIGNS:
                self._known[key] = sign if sign.at is not None else replace(sign, at=at)


@dataclass(frozen=True, slots=True)
class Seen:
    """A job, examined. `age`: seconds since its diagnosis; `read`: since its boxes were read."""

    diagnosis: Diagnosis
    heat: Heatmap | str | None
    """A sentence: why there is none. None: it is not wanted."""
    going: Progress
    age: float = 0.0
    read: float = 0.0
    followed: tuple[Followed, ...] = ()

    @classmethod
    def of(
        cls,
        diagnosis: Diagnosis,
        case: Case,
        before: tuple[Followed, ...] = (),
        at: float = 0.0,
        *,
        heated: bool = True,
    ) -> Seen:
        """`before`: the findings followed so far; `at`: the moment of this view."""
        followed = update_history(before, diagnosis.findings, at, over=case.job.ended is not None)
        map_ = make_heatmap(case) if heated else None
        return cls(diagnosis, map_, measure_progress(case, diagnosis.stages), followed=followed)


class Watch:
    """One recording, watched. For one thread. Raises `NotARecording` from `look`. `heated`: a
    heat-map is wanted."""

    def __init__(
        self,
        recording: Path,
        clock: Callable[[], float] = time.monotonic,
        cost: Callable[[], float] = time.thread_time,
        settings: Settings = DEFAULTS,
        *,
        heated: bool = True,
    ) -> None:
        self._settings = settings
        self._heated = heated
        self._recording = recording
        self._clock = clock
        self._readers: dict[Path, BoxReader] = {}
        self._loading = Pace(clock, cost, LONGEST_UNREAD)
        self._diagnosing = Pace(clock, cost, share=JUDGING)
        self._listening = Pace(clock, cost)
        self._signs = ConsoleSigns(recording)
        self._seen: Seen | None = None
        self._loaded: Case | None = None
        """As it was read, before the diagnosis left out what is over."""
        self._diagnosed_at = self._read_at = 0.0
        self._whole_at = -LONGEST_PAST
        self._whole = True
        """The look that goes on reads boxes whole."""

    def poll(self, *, anew: bool = False) -> Seen:
        """The job as it is now; `anew`: whatever that costs."""
        if self._seen is not None and not anew and not self._loading.due():
            return self._aged(self._seen)
        self._loading.begin()
        self._read_at = now = self._clock()
        self._whole = anew or now - self._whole_at >= LONGEST_PAST
        self._whole_at = now if self._whole else self._whole_at
        case = load_recording(self._recording, read=self._read)
        old = self._seen.diagnosis if self._seen else None
        spent = 0.0
        before, self._loaded = self._loaded, case
        if old is None or before is None or anew or self._diagnosing.due() or turned(before, case):
            self._diagnosing.begin()
            diagnosis = diagnose(case, self._settings)
            spent = self._diagnosing.end()
            self._diagnosed_at = self._clock()
        else:
            diagnosis = refreshed(old, case)
        if case.job.ended is None:
            spent += self._listen()
            diagnosis = replace(diagnosis, case=replace(diagnosis.case, signs=self._signs.known))
        followed = self._seen.followed if self._seen else ()
        seen = Seen.of(diagnosis, case, followed, case.observed, heated=self._heated)
        self._loading.end(without=spent)
        self._seen = self._aged(seen)
        return self._seen

    def _listen(self) -> float:
        """Look through what the job printed; seconds that it took. Not for the first frame."""
        if self._seen is None or not self._listening.due():
            return 0.0
        self._listening.begin()
        self._signs.poll()
        return self._listening.end()

    def close(self) -> None:
        for reader in self._readers.values():
            reader.close()
        self._readers = {}

    def _aged(self, seen: Seen) -> Seen:
        now = self._clock()
        return replace(seen, age=now - self._diagnosed_at, read=now - self._read_at)

    def _read(self, file: BoxFile) -> Box:
        reader = self._readers.get(file.path)
        if reader is not None and self._whole and reader.replaced():
            self._readers.pop(file.path).close()
            reader = None
        if reader is None:
            if len(self._readers) >= MOST_READERS:
                return read_box(file)
            reader = self._readers[file.path] = BoxReader(file)
        return reader.poll(whole=self._whole)


def refreshed(old: Diagnosis, case: Case) -> Diagnosis:
    """The old judgement with new facts: where the ranks are and what they do."""
    now = {(rank.rank, rank.pid): rank for rank in case.ranks}

    def fresh(summary: RankSummary) -> RankSummary:
        rank = now.get((summary.rank, summary.pid))
        if rank is None:
            return summary
        step = int(rank.steps["step"][-1]) if len(rank.steps) else None
        stuck = summary.state in JUDGED and step == summary.last_step
        where = (rank.now.site or rank.now.phase) if rank.now else summary.where
        return replace(
            summary,
            last_step=step,
            state=summary.state if stuck else rank.state.value,
            where=summary.where
            if stuck and old.case.job_snapshots
            else where,  # a stack tells more
        )

    job = replace(case.job, outcome=old.case.job.outcome)
    return replace(
        old, case=replace(case, job=job), ranks=tuple(fresh(summary) for summary in old.ranks)
    )


def turned(old: Case, new: Case) -> bool:
    """Whether something happened that nobody should wait to be told: the job or a rank ended, a
    rank came or went, a step was measured for the first time, stacks were read as the job stood."""
    before = old.job.ended, len(old.job_snapshots), _states(old)
    return before != (new.job.ended, len(new.job_snapshots), _states(new))


def _states(case: Case) -> tuple[tuple[int | None, int | None, State | None, bool], ...]:
    """A rank that lives waits and runs by turns, many times a second."""
    return tuple(
        (rank.rank, rank.pid, None if rank.state in LIVES else rank.state, bool(len(rank.steps)))
        for rank in case.ranks
    )
