"""Whether ranks train as replicas should: on different batches, with equal weights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

from mgpu_doctor.case.model import Rank
from mgpu_doctor.case.untrusted_json import number

LEAST_DISTINCT = 3
"""Least different batches of a rank: one constant or two alternating batches show nothing."""
LEAST_PLACES = 4
"""Batches, or repeated batches, that must have been compared."""
ROUNDING = 1e-5
"""Relative difference between the sums of sampled weights up to which they are the same but for
rounding: float32 resolves 6e-8, and CPUs of two kinds may differ in the last bits of each step."""

Place = tuple[int, int, int]
"""Loader (the first that trains is 0), epoch, index."""


@dataclass(frozen=True, slots=True)
class Replicas:
    """Comparisons over the ranks' digests; None: nothing comparable was sampled."""

    same_batches: float | None = None
    """Share, 0..1, of compared batches that another rank saw too."""
    diverged_at: int | None = None
    """First sampled step from which on weights differ; None: they do not, or were not compared."""
    compared_weights: int = 0
    """Moments at which all ranks' weights could be compared."""
    compared_batches: int = 0
    """Places (loader, epoch, index) at which the ranks' batches could be compared."""
    alike: tuple[tuple[int, ...], ...] = ()
    """Groups of ranks that saw the same batch at every compared place."""
    repeats: bool | None = None
    """Whether each rank saw the same batches in the same order in each epoch."""
    diverged_moments: int = 0
    """Compared moments from `diverged_at` on."""
    factions: tuple[tuple[int, ...], ...] = ()
    """Ranks with equal weights at the last compared moment, the most numerous first; empty where
    all are equal."""
    jumped: tuple[int, ...] = ()
    """The ranks whose weights left those of the majority, which stayed equal to the last bit;
    empty: unknown. With two ranks, it is unknown which one left: one may have stopped learning."""
    were_equal: bool = False
    """Whether all ranks' weights were equal to the last bit at the compared moment before
    `diverged_at`."""
    distance: float | None = None
    """Relative difference between the largest and the smallest sum of the sampled weights then."""


def compare(ranks: Sequence[Rank]) -> Replicas:
    """Compares the recorded digests of batches and weights."""
    fed = {rank.rank: _fed(rank) for rank in ranks if rank.rank is not None}
    return _with_weights(_of_batches({number: seen for number, seen in fed.items() if seen}), ranks)


def _fed(rank: Rank) -> Mapping[Place, str]:
    """Position -> batch that the rank saw; empty if its batches are not informative."""
    rows = rank.metadata.batches
    loaders = list(dict.fromkeys(row.loader for row in rows))
    if len({row.digest for row in rows}) < LEAST_DISTINCT:
        return {}
    return {(loaders.index(row.loader), row.epoch, row.index): row.digest for row in rows}


def _of_batches(fed: Mapping[int, Mapping[Place, str]]) -> Replicas:
    repeated = [repeats for seen in fed.values() if (repeats := _repeats(seen)) is not None]
    repeats = all(repeated) if repeated else None
    places = set.intersection(*(set(seen) for seen in fed.values())) if len(fed) > 1 else set()
    if len(places) < LEAST_PLACES:
        return Replicas(repeats=repeats)
    order = sorted(places)
    shared = 0
    for place in order:
        shared += sum(len(group) for group in _grouped({r: s[place] for r, s in fed.items()}))
    return Replicas(
        same_batches=shared / (len(order) * len(fed)),
        compared_batches=len(order),
        alike=_grouped({r: tuple(seen[place] for place in order) for r, seen in fed.items()}),
        repeats=repeats,
    )


def _grouped(values: Mapping[int, object]) -> tuple[tuple[int, ...], ...]:
    """Ranks that share a value with another rank, by value."""
    return tuple(group for group in _factions(values) if len(group) > 1)


def _factions(values: Mapping[int, object]) -> tuple[tuple[int, ...], ...]:
    groups: dict[object, list[int]] = {}
    for rank, value in sorted(values.items()):
        groups.setdefault(value, []).append(rank)
    return tuple(sorted(map(tuple, groups.values()), key=lambda group: (-len(group), group)))


def _repeats(seen: Mapping[Place, str]) -> bool | None:
    """Whether later epochs brought the batches of the first one; None: too few to tell."""
    again = [
        digest == seen[loader, 0, index]
        for (loader, epoch, index), digest in seen.items()
        if epoch and (loader, 0, index) in seen
    ]
    return all(again) if len(again) >= LEAST_PLACES else None


# ------------------------------------------------------------------------------------ weights


@dataclass(frozen=True, slots=True)
class _Sample:
    """A digest taken apart: `SHAPES.VALUES.SUM`."""

    shapes: str
    values: str
    total: float | None

    @classmethod
    def of(cls, digest: str) -> _Sample | None:
        shapes, _, rest = digest.partition(".")
        values, _, total = rest.partition(".")
        try:
            known = number(float(total))
        except ValueError:
            return None
        return cls(shapes, values, known) if values else None


def _with_weights(replicas: Replicas, ranks: Sequence[Rank]) -> Replicas:
    moments = list(_moments(ranks))
    apart = list(takewhile(lambda moment: _distance(moment[1]) > ROUNDING, reversed(moments)))
    if not apart:
        return replace(replicas, compared_weights=len(moments))
    last = apart[0][1]
    before = moments[-len(apart) - 1][1] if len(apart) < len(moments) else {}
    were_equal = len({sample.values for sample in before.values()}) == 1
    return replace(
        replicas,
        compared_weights=len(moments),
        diverged_at=apart[-1][0],
        diverged_moments=len(apart),
        factions=_factions({rank: sample.values for rank, sample in last.items()}),
        jumped=_find_jump(last) if were_equal else (),
        were_equal=were_equal,
        distance=_distance(last),
    )


def _find_jump(last: Mapping[int, _Sample]) -> tuple[int, ...]:
    """The ranks that left the others since the moment before, when all bits were equal."""
    first, *others = _factions({rank: sample.values for rank, sample in last.items()})
    rest = tuple(sorted(rank for group in others for rank in group))
    return rest if len(first) > max(1, len(rest)) else ()


def _moments(ranks: Sequence[Rank]) -> Iterable[tuple[int, Mapping[int, _Sample]]]:
    """Step and samples of the moments that all ranks with weights have in common."""
    rows_by_rank = {
        rank.rank: {
            (row.step, row.sequence, row.updates): row.digest for row in rank.metadata.weights
        }
        for rank in ranks
        if rank.rank is not None
    }
    rows_by_rank = {rank: rows for rank, rows in rows_by_rank.items() if rows}
    if len(rows_by_rank) < 2:
        return
    common = set.intersection(*(set(rows) for rows in rows_by_rank.values()))
    places = set()
    for step, sequence, updates in sorted(common):
        if (sequence, updates) in places:
            continue  # steps that were recorded late, all at once
        places.add((sequence, updates))
        samples_by_rank = {
            rank: _Sample.of(rows[step, sequence, updates]) for rank, rows in rows_by_rank.items()
        }
        samples = {rank: sample for rank, sample in samples_by_rank.items() if sample is not None}
        same_shapes = len({sample.shapes for sample in samples.values()}) == 1
        numbers = all(sample.total is not None for sample in samples.values())
        if len(samples) == len(rows_by_rank) and same_shapes and numbers:
            yield step, samples


def _distance(samples: Mapping[int, _Sample]) -> float:
    """Difference between the ranks, relative to the largest sum; 0 if all bits are equal."""
    totals = [sample.total for sample in samples.values() if sample.total is not None]
    if len({sample.values for sample in samples.values()}) < 2 or not max(totals):
        return 0.0
    return (max(totals) - min(totals)) / max(totals)
