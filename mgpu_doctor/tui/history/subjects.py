"""Whose past is looked at: all GPUs, one of them, the host, the job, all ranks or one of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from mgpu_doctor.case.model import Rank
from mgpu_doctor.live.history import steps
from mgpu_doctor.live.history.collect import History
from mgpu_doctor.live.history.measures import (
    OF_DEVICE,
    OF_HOST,
    OF_JOB,
    OF_PRESSURE,
    OF_RANK,
    Measure,
)
from mgpu_doctor.live.history.series import EMPTY
from mgpu_doctor.live.history.spans import NONE, Spans


class Kind(Enum):
    GPUS = "all GPUs"
    GPU = "GPU"
    HOST = "host"
    JOB = "job"
    RANKS = "all ranks"
    RANK = "rank"


@dataclass(frozen=True, slots=True)
class Subject:
    """`number`: index of the GPU or number of the rank."""

    kind: Kind
    number: int | None = None

    @property
    def title(self) -> str:
        return self.kind.value if self.number is None else f"{self.kind.value} {self.number}"

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
    Kind.HOST: (*OF_HOST, *OF_PRESSURE),
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
    """Those that there are, in the order in which one goes through them."""
    gpus = [Subject(Kind.GPU, index) for index in history.devices]
    numbers = sorted({rank.rank for rank in history.ranks if rank.rank is not None})
    ranks = [Subject(Kind.RANK, number) for number in numbers]
    return (
        *([Subject(Kind.GPUS)] if gpus else []),
        *gpus,
        Subject(Kind.HOST),
        *([Subject(Kind.JOB), Subject(Kind.RANKS)] if ranks else []),
        *ranks,
    )


def lanes(history: History, subject: Subject, measure: Measure) -> list[Lane]:
    """The graphs of a subject: one a measure, or `measure` of each of many."""
    if not subject.is_many:
        return [Lane(subject, one, one.name) for one in subject.measures]
    single = Kind.GPU if subject.kind is Kind.GPUS else Kind.RANK
    return [Lane(one, measure, one.title) for one in subjects(history) if one.kind is single]


def spans(history: History, lane: Lane) -> Spans:
    """What is known of it up to the moment shown."""
    return _all(history, lane.subject, lane.measure).until(history.at)


def _all(history: History, subject: Subject, measure: Measure) -> Spans:
    if subject.kind is Kind.GPU and subject.number is not None:
        return history.devices.get(subject.number, EMPTY).spans(tuple(OF_DEVICE).index(measure))
    if subject.kind is Kind.HOST and measure in OF_HOST:
        return history.host.spans(tuple(OF_HOST).index(measure))
    if subject.kind is Kind.HOST and measure in OF_PRESSURE:
        return history.pressure.spans(OF_PRESSURE.index(measure))
    if subject.kind is Kind.JOB:
        told = [steps.spans(_of(history, number), measure) for number in _tellers(history)]
        return next((one for one in told if len(one)), NONE)
    if subject.kind is Kind.RANK:
        return steps.spans(_of(history, subject.number), measure)
    return NONE


MOST_ASKED = 16
"""Ranks asked for the job's loss: the last stage of a pipeline alone knows it."""


def _tellers(history: History) -> Sequence[int]:
    numbers = sorted({rank.rank for rank in history.ranks if rank.rank is not None})
    return [*numbers[: MOST_ASKED // 2], *numbers[MOST_ASKED // 2 :][-MOST_ASKED // 2 :]]


def _of(history: History, number: int | None) -> list[Rank]:
    return [rank for rank in history.ranks if rank.rank == number]
