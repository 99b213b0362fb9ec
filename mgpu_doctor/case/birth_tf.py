"""What a rank's birth certificate tells of TensorFlow alone; see `birth`."""

from __future__ import annotations

from dataclasses import dataclass

from mgpu_doctor.case.birth import MOST, MOST_RANKS, entries, flag
from mgpu_doctor.case.files import number, text, whole
from mgpu_doctor.case.model import Rank


@dataclass(frozen=True, slots=True)
class Pace:
    """How long one of several takes for its part each time, lately. Seconds."""

    index: int
    count: int
    """How often so far."""
    newest: int
    """Times that the quartiles are of."""
    low: float
    middle: float
    high: float


@dataclass(frozen=True, slots=True)
class TfPipeline:
    """A tf.data pipeline that was iterated over."""

    prefetch: int | None
    """Elements; -1: TensorFlow chooses; 0: none."""
    parallel_calls: int | None
    """The fewest of its maps; -1: TensorFlow chooses; None: it has no map, or it is not known."""
    cached: bool | None


def replicas(rank: Rank | None) -> int | None:
    """Over which a TensorFlow strategy divides each batch, in this process or in all of them."""
    return whole(rank.birth.get("replicas"), 1, MOST_RANKS) if rank is not None else None


def replica_devices(rank: Rank | None) -> tuple[str, ...]:
    """Of each of them, as `cpu:0`."""
    told = rank.birth.get("replica_devices") if rank is not None else None
    return tuple(text(one, 100) or "" for one in told[:MOST]) if isinstance(told, list) else ()


def tf_pipelines(rank: Rank | None) -> tuple[TfPipeline, ...]:
    """The first ones that the rank iterated over."""
    return tuple(
        TfPipeline(
            prefetch=whole(one.get("prefetch"), -1),
            parallel_calls=whole(one.get("parallel_calls"), -1),
            cached=flag(one.get("cached")),
        )
        for one in entries(rank, "pipelines")
    )


def worker_paces(rank: Rank | None) -> tuple[Pace, ...]:
    """Of each worker with the closures that a chief of parameter servers gives it."""
    return _paces(rank, "closures", "worker")


def replica_paces(rank: Rank | None) -> tuple[Pace, ...]:
    """Of each replica of a TensorFlow strategy in this process, from a step's beginning until its
    gradients were there."""
    return _paces(rank, "replica_steps", "replica")


def _paces(rank: Rank | None, key: str, name: str) -> tuple[Pace, ...]:
    found = {}
    for one in entries(rank, key):
        index, count, newest = (whole(one.get(each)) for each in (name, "count", "newest"))
        told = one.get("quartiles")
        values = [number(each) for each in told] if isinstance(told, list) else []
        known = [each for each in values if each is not None and each >= 0]
        if index is None or count is None or not newest or len(known) != 3:
            continue
        if known == sorted(known):
            found[index] = Pace(index, count, newest, *known)
    return tuple(found[index] for index in sorted(found))
