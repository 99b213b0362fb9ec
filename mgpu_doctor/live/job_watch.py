"""Watches one running job: rereads its recording, diagnoses it, and tracks its findings.

Boxes are read incrementally. Costly work is done less often than the screen is drawn: the diagnosis
may be some seconds old, the facts are current.

Known failures in its console output are shown as events as they appear; only the newest output
is read. Only `diagnose` judges them: it reads all output."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Container, Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path

from mgpu_doctor.case.box_files import find_boxes
from mgpu_doctor.case.captured_console import read_streams
from mgpu_doctor.case.log_case import signs_of
from mgpu_doctor.case.log_matches import LogMatch
from mgpu_doctor.case.model import Case, State
from mgpu_doctor.case.recording_case import load_recording
from mgpu_doctor.diagnosis import diagnose
from mgpu_doctor.findings import Diagnosis, RankSummary
from mgpu_doctor.live.frame_source import Pace
from mgpu_doctor.live.seen_job import Leaders, Seen
from mgpu_doctor.recording.box import Box, BoxFile, BoxReader
from mgpu_doctor.recording.open_files import allow_open_files
from mgpu_doctor.rules.settings import DEFAULTS, Settings

MOST_BYTES = 1 << 18
"""Bytes read per stream: a job prints far less between two polls."""
MOST_SIGNS = 256
Key = tuple[str, int | None, str]
_Process = tuple[str, int | None, int | None]
"""Host, pid and rank."""
JUDGING = 0.002
"""Share of a core for diagnosing. It is repeated after `LONGEST_REST` in any case, and at once
after an urgent change."""
LONGEST_UNREAD = 15.0
"""Seconds after which the boxes are read again in any case."""
LONGEST_PAST = 30.0
"""Seconds by which the whole run's history may lag behind the steps, which reach further back one
by one. The same for all ranks, because their histories are compared."""
MOST_READERS = 16_384
"""Boxes kept open, if the system allows; those of further ranks are reopened each time."""
OTHER_FILES = 512
"""Descriptors that are left for everything else."""
MOST_RECORDS = 1 << 20
"""Records kept of all ranks together, 128 bytes each, twice while they are read again: all that a
black box holds with 128 ranks, the newest 104 steps with 10,000. Of earlier steps the history is
kept."""
MOST_LEADERS = 16
"""Ranks whose newest step is read for each frame: the furthest of each host. Ranks of a job are at
most some steps apart, so more would cost more and show the same."""
LIVES = (State.RUNNING, State.WAITING)
JUDGED = (State.HUNG.value, State.WAITING.value)


class ConsoleSigns:
    """Known failures in the console output. For one thread. `poll` takes some tens of milliseconds
    if anything was printed since."""

    def __init__(self, recording: Path, clock: Callable[[], float] = time.time) -> None:
        self._recording = recording
        self._clock = clock
        self._known: dict[Key, LogMatch] = {}
        self._seen: Mapping[str, list[str]] | None = None

    @property
    def known(self) -> tuple[LogMatch, ...]:
        """Returns the signs in the order in which they were found."""
        return tuple(self._known.values())

    def poll(self) -> None:
        """Reads new signs. A line without a timestamp is dated between the polls before and after
        it; lines present at the first poll have no time."""
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


class Watch:
    """Watches one recording. For one thread. `poll` raises `NotARecording`. `heated`: whether
    maps of ranks are needed."""

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
        self._most_readers = self._most_records = 0
        self._loading = Pace(clock, cost, LONGEST_UNREAD)
        self._diagnosing = Pace(clock, cost, share=JUDGING)
        self._listening = Pace(clock, cost)
        self._signs = ConsoleSigns(recording)
        self._seen: Seen | None = None
        self._files: dict[_Process, BoxFile] = {}
        """Of each process and rank, the box."""
        self._leaders = Leaders()
        self._loaded: Case | None = None
        """The case as read, before the diagnosis removed what is over."""
        self._diagnosed_at = self._read_at = 0.0
        self._whole_at = -LONGEST_PAST
        self._whole = True
        """Whether the current poll reads boxes completely."""

    def poll(self, *, anew: bool = False, judging: bool = True) -> Seen:
        """Returns the job as it is now. `anew`: diagnose it in any case. Not `judging`: keep the
        last diagnosis if there is one, because some of the ranks are not up to date."""
        if self._seen is not None and not anew and not self._loading.due():
            return self._leaders.advance(self._aged(self._seen))
        seen = self.examine(anew=anew, judging=judging)
        self._leaders.follow(seen.leaders)
        return seen

    @property
    def due(self) -> float:
        """Returns when the boxes should be read again, on the watch's clock."""
        return self._loading.due_at

    def examine(self, *, anew: bool = False, judging: bool = True) -> Seen:
        """As `poll`, but reads the boxes in any case."""
        self._loading.begin()
        self._read_at = now = self._clock()
        self._whole = anew or now - self._whole_at >= LONGEST_PAST
        if self._whole:
            self._plan()
        self._whole_at = now if self._whole else self._whole_at
        case = load_recording(self._recording, read=self._read)
        old = self._seen.diagnosis if self._seen else None
        spent = 0.0
        before, self._loaded = self._loaded, case
        due = judging and (before is None or self._diagnosing.due() or turned(before, case))
        if old is None or anew or due:
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
        leaders = self._choose_leaders(case, diagnosis.servers)
        self._loading.end(without=spent)
        self._seen = self._aged(replace(seen, leaders=leaders))
        return self._seen

    def _choose_leaders(self, case: Case, servers: Container[int | None]) -> tuple[BoxFile, ...]:
        """The boxes of the furthest ranks that run and train, of as many hosts as possible: what
        hosts send arrives at different moments. Of equal ones those of the first."""
        running = [
            rank
            for rank in case.ranks
            if rank.state in LIVES and len(rank.steps) and rank.rank not in servers
        ]
        furthest = sorted(running, key=lambda rank: -(rank.last_step or 0))
        places: defaultdict[str, count[int]] = defaultdict(count)
        ranked = [(next(places[rank.host]), rank) for rank in furthest]
        chosen = sorted(ranked, key=lambda placed: placed[0])[:MOST_LEADERS]
        files = (self._files.get((rank.host, rank.pid, rank.rank)) for _, rank in chosen)
        return tuple(file for file in files if file is not None)

    def _listen(self) -> float:
        """Searches the job's output; returns the seconds that it took. Not done for the first
        frame."""
        if self._seen is None or not self._listening.due():
            return 0.0
        self._listening.begin()
        self._signs.poll()
        return self._listening.end()

    def close(self) -> None:
        for reader in self._readers.values():
            reader.close()
        self._readers = {}
        self._leaders.close()

    def _aged(self, seen: Seen) -> Seen:
        now = self._clock()
        return replace(seen, age=now - self._diagnosed_at, read=now - self._read_at)

    def _read(self, file: BoxFile) -> Box:
        reader = self._readers.get(file.path)
        if reader is not None and self._whole and reader.replaced():
            self._readers.pop(file.path).close()
            reader = None
        if reader is None:
            reader = BoxReader(file)
            if len(self._readers) >= self._most_readers:
                with reader:
                    return reader.poll(most=self._most_records)
            self._readers[file.path] = reader
        box = reader.poll(whole=self._whole, most=self._most_records)
        who = box.identity
        self._files[who.host, who.pid, who.rank] = file
        return box

    def _plan(self) -> None:
        """Divides records and descriptors among the boxes that there are now."""
        boxes = len(find_boxes(self._recording, ()))
        self._most_records = MOST_RECORDS // max(1, boxes)
        self._most_readers = allow_open_files(min(boxes, MOST_READERS) + OTHER_FILES) - OTHER_FILES


def refreshed(old: Diagnosis, case: Case) -> Diagnosis:
    """Returns the old diagnosis with new facts: each rank's state and position."""
    now = {(rank.rank, rank.pid): rank for rank in case.ranks}

    def fresh(summary: RankSummary) -> RankSummary:
        rank = now.get((summary.rank, summary.pid))
        if rank is None:
            return summary
        step = rank.last_step
        stuck = summary.state in JUDGED and step == summary.last_step
        where = (rank.now.site or rank.now.phase) if rank.now else summary.where
        return replace(
            summary,
            last_step=step,
            state=summary.state if stuck else rank.state.value,
            where=summary.where if stuck and old.case.job_snapshots else where,  # a stack says more
        )

    job = replace(case.job, outcome=old.case.job.outcome)
    return replace(
        old, case=replace(case, job=job), ranks=tuple(fresh(summary) for summary in old.ranks)
    )


def turned(old: Case, new: Case) -> bool:
    """Returns whether something urgent happened: the job or a rank ended, a rank joined or left,
    the first step was measured, or stacks of a stalled job were read."""
    before = old.job.ended, len(old.job_snapshots), _states(old)
    return before != (new.job.ended, len(new.job_snapshots), _states(new))


def _states(case: Case) -> tuple[tuple[int | None, int | None, State | None, bool], ...]:
    """Returns the ranks' states; running and waiting count as one, as they alternate many times per
    second."""
    return tuple(
        (rank.rank, rank.pid, None if rank.state in LIVES else rank.state, bool(len(rank.steps)))
        for rank in case.ranks
    )
