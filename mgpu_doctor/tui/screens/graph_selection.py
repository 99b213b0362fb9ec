"""What the graphs show: subject, measure and time window. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from mgpu_doctor.case.model import Rank
from mgpu_doctor.live.history_collector import History, HostPast
from mgpu_doctor.live.history_measures import (
    OF_COUNTERS,
    OF_DEVICE,
    OF_HOST,
    OF_JOB,
    OF_RANK,
    Measure,
)
from mgpu_doctor.live.history_series import EMPTY
from mgpu_doctor.live.history_spans import NONE, Spans, trace_spans
from mgpu_doctor.live.rank_history import rank_spans
from mgpu_doctor.report.text import cut, line

LONGEST_HOST = 20


class Kind(Enum):
    GPUS = "all GPUs"
    GPU = "GPU"
    HOST = "host"
    JOB = "job"
    RANKS = "all ranks"
    RANK = "rank"


@dataclass(frozen=True, slots=True)
class Subject:
    """`number`: index of the GPU or number of the rank. `host`: whose it is; None: there is but
    one, or it is the job's."""

    kind: Kind
    number: int | None = None
    host: str | None = None

    @property
    def title(self) -> str:
        numbered = self.kind.value if self.number is None else f"{self.kind.value} {self.number}"
        return f"{numbered}, {cut(line(self.host), LONGEST_HOST)}" if self.host else numbered

    @property
    def is_many(self) -> bool:
        """One measure of all of a kind, not all measures of one."""
        return self.kind in (Kind.GPUS, Kind.RANKS)

    @property
    def measures(self) -> tuple[Measure, ...]:
        return MEASURES[self.kind]


MEASURES = {
    Kind.GPUS: tuple(OF_DEVICE),
    Kind.GPU: tuple(OF_DEVICE),
    Kind.HOST: (*OF_HOST, *OF_COUNTERS),
    Kind.JOB: OF_JOB,
    Kind.RANKS: OF_RANK,
    Kind.RANK: OF_RANK,
}


@dataclass(frozen=True, slots=True)
class Lane:
    """One graph: a measure of a single subject."""

    subject: Subject
    measure: Measure
    title: str


def subjects(history: History) -> tuple[Subject, ...]:
    """Returns all subjects, in the order of the keys."""
    several = len(_hosts(history)) > 1
    gpus = [Subject(Kind.GPU, index, host if several else None) for host, index in history.devices]
    hosts = [Subject(Kind.HOST, host=host if several else None) for host in _hosts(history)]
    numbers = sorted({rank.rank for rank in history.ranks if rank.rank is not None})
    ranks = [Subject(Kind.RANK, number) for number in numbers]
    return (
        *([Subject(Kind.GPUS)] if gpus else []),
        *gpus,
        *hosts,
        *([Subject(Kind.JOB), Subject(Kind.RANKS)] if ranks else []),
        *ranks,
    )


def lanes(history: History, subject: Subject, measure: Measure) -> list[Lane]:
    """Returns the graphs of a subject: one per measure, or `measure` of each of many."""
    if not subject.is_many:
        return [Lane(subject, measure, measure.name) for measure in subject.measures]
    single = Kind.GPU if subject.kind is Kind.GPUS else Kind.RANK
    return [
        Lane(subject, measure, subject.title)
        for subject in subjects(history)
        if subject.kind is single
    ]


def spans(history: History, lane: Lane) -> Spans:
    """Returns what is known of a graph up to the moment shown."""
    return _all(history, lane.subject, lane.measure).until(history.at)


def _all(history: History, subject: Subject, measure: Measure) -> Spans:
    host = subject.host or _hosts(history)[0]
    if subject.kind is Kind.GPU and subject.number is not None:
        trace = history.devices.get((host, subject.number), EMPTY)
        return trace_spans(trace, tuple(OF_DEVICE).index(measure))
    if subject.kind is Kind.HOST:
        past = history.hosts.get(host, HostPast())
        if measure in OF_HOST:
            return trace_spans(past.use, tuple(OF_HOST).index(measure))
        return trace_spans(past.counted, OF_COUNTERS.index(measure))
    if subject.kind is Kind.JOB:
        all_spans = [rank_spans(_of(history, number), measure) for number in _tellers(history)]
        return next((spans for spans in all_spans if len(spans)), NONE)
    if subject.kind is Kind.RANK:
        return rank_spans(_of(history, subject.number), measure)
    return NONE


def _hosts(history: History) -> Sequence[str | None]:
    """The hosts with samples; [None] if there are none."""
    of_devices = (host for host, _ in history.devices)
    return [*dict.fromkeys((*of_devices, *history.hosts))] or [None]


MOST_ASKED = 16
"""Ranks asked for the job's loss: the last stage of a pipeline alone knows it."""


def _tellers(history: History) -> Sequence[int]:
    numbers = sorted({rank.rank for rank in history.ranks if rank.rank is not None})
    return [*numbers[: MOST_ASKED // 2], *numbers[MOST_ASKED // 2 :][-MOST_ASKED // 2 :]]


def _of(history: History, number: int | None) -> list[Rank]:
    return [rank for rank in history.ranks if rank.rank == number]


LENGTHS = (60.0, 300.0, 900.0, 3600.0, 3 * 3600.0, 6 * 3600.0)
"""Seconds: the time bases."""
LEAST_SHOWN = 15.0
"""Seconds that a window shows at least, while fewer are known."""
PAN = 0.25
"""Share of the window by which one key press moves it."""


@dataclass(frozen=True, slots=True)
class Window:
    """`base`: place in `LENGTHS`. `end`: seconds since the epoch; None: it follows the present."""

    base: int = 1
    end: float | None = None

    @property
    def length(self) -> float:
        """Seconds."""
        return LENGTHS[self.base]

    def span(self, now: float) -> tuple[float, float]:
        """From when to when."""
        end = now if self.end is None else min(self.end, now)
        return end - self.length, end

    def fitted(self, now: float, first: float | None) -> tuple[float, float]:
        """From when to when, without the time before `first`, when the samples begin; at least
        `LEAST_SHOWN`."""
        start, end = self.span(now)
        return (start if first is None else max(start, min(first, end - LEAST_SHOWN))), end

    def zoom(self, by: int, now: float, first: float | None, share: float = 0.5) -> Window:
        """Zooms out by this many bases. The time at the `share` of the width stays there, unless
        the present is followed."""
        base = max(0, min(len(LENGTHS) - 1, self.base + by))
        if self.end is None:
            return replace(self, base=base)
        start, _ = self.span(now)
        still = start + share * self.length
        return Window(base, still + (1 - share) * LENGTHS[base]).clamped(now, first)

    def pan(self, by: float, now: float, first: float | None) -> Window:
        """Moves this many steps later (or earlier)."""
        _, end = self.span(now)
        return replace(self, end=end + by * PAN * self.length).clamped(now, first)

    def follow(self) -> Window:
        """Follows the present again."""
        return replace(self, end=None)

    def clamped(self, now: float, first: float | None) -> Window:
        """Not beyond the present, which is then followed, and not before `first`, the beginning of
        what is known."""
        if self.end is None or first is None:
            return self.follow()
        end = max(self.end, first + self.length)
        return self.follow() if end >= now else replace(self, end=end)


@dataclass(frozen=True, slots=True)
class Choice:
    """`measure`: place among the subject's measures. `scrolled`: charts above the first shown.
    `apart`: GPUs or ranks are not overlaid."""

    window: Window = field(default_factory=Window)
    subject: Subject | None = None
    measure: int = 0
    scrolled: int = 0
    apart: bool = False

    def shown(self, history: History) -> Subject:
        """The subject, or the first one where it is not chosen yet or gone."""
        there = subjects(history)
        return self.subject if self.subject in there and self.subject else there[0]

    def measured(self, history: History) -> Measure:
        """The selected measure."""
        measures = self.shown(history).measures
        return measures[self.measure % len(measures)]

    def turned(self, history: History, by: int) -> Choice:
        """Moves this many subjects on, with wrap-around."""
        there = subjects(history)
        return self.on(there[(there.index(self.shown(history)) + by) % len(there)])

    def on(self, subject: Subject) -> Choice:
        """Another subject; the same measure where it has it."""
        kept = self.measure if self.subject is None else self._same(subject)
        return replace(self, subject=subject, measure=kept, scrolled=0)

    def _same(self, subject: Subject) -> int:
        assert self.subject is not None
        measure = self.subject.measures[self.measure % len(self.subject.measures)]
        return subject.measures.index(measure) if measure in subject.measures else 0

    def next_measure(self, history: History, by: int) -> Choice:
        """Moves this many measures on, with wrap-around."""
        count = len(self.shown(history).measures)
        return replace(self, measure=(self.measure + by) % count, scrolled=0)

    def picked(self, history: History, lane: Lane) -> Choice:
        """A graph was pointed at: of many its subject, of one its measure."""
        shown = self.shown(history)
        if shown.is_many:
            here = replace(self, subject=shown)
            return here.on(lane.subject)
        return replace(self, subject=shown, measure=shown.measures.index(lane.measure), scrolled=0)

    def scrolled_by(self, by: int, most: int) -> Choice:
        """Scrolls this many graphs down, `most` at most."""
        return replace(self, scrolled=max(0, min(most, self.scrolled + by)))
