"""All that the traces of a case tell: the input of the rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from mgpu_doctor.analysis.traces.joined_collectives import UnjoinableError, Waits, join
from mgpu_doctor.analysis.traces.late_rank import LEAST_UNITS, Late, find_late
from mgpu_doctor.analysis.traces.time_split import Split, split, step_lengths
from mgpu_doctor.case.profiler_traces import Trace


@dataclass(frozen=True, slots=True)
class Told:
    """Seconds."""

    splits: Mapping[int, Split]
    """By place in the case's traces."""
    ranks: Mapping[int, int | None]
    """Place -> rank."""
    on_device: bool
    steps: int | None
    """That the profiler marked on the rank with the most; None: none are."""
    step_seconds: float | None
    """Mean of the job's."""
    step_medians: Mapping[int | None, float]
    """Rank -> seconds, where its steps are marked."""
    world: int
    waits: Waits | None = None
    late: Late | None = None
    undecided: str | None = None
    """Why ranks were not compared."""
    longer: Mapping[str, float] | None = None
    """Of the late rank: seconds a unit that a part of its work takes beyond the others' median."""

    @property
    def unit_seconds(self) -> float:
        """Mean length of what `waits` has rows of."""
        widest = max((one.window for one in self.splits.values()), default=0.0)
        return widest / len(self.waits.waits) if self.waits is not None else widest


def tell(traces: Sequence[Trace], world: int | None) -> Told | None:
    """None where there are no traces with anything in them."""
    found = {place: split(trace) for place, trace in enumerate(traces)}
    splits = {place: one for place, one in found.items() if one is not None}
    if not splits:
        return None
    lengths = {traces[place].rank: step_lengths(traces[place]) for place in splits}
    marked = [length for length in lengths.values() if len(length)]
    told = Told(
        splits=splits,
        ranks={place: traces[place].rank for place in splits},
        on_device=all(traces[place].on_device for place in splits),
        steps=max((len(one) for one in marked), default=0) or None,
        step_seconds=float(np.mean(np.concatenate(marked))) if marked else None,
        step_medians={rank: float(np.median(one)) for rank, one in lengths.items() if len(one)},
        world=max(world or 1, len(splits)),
    )
    return _compared(told, [traces[place] for place in splits])


def _compared(told: Told, traces: Sequence[Trace]) -> Told:
    if told.world < 2:
        return told
    try:
        waits = join(traces)
    except UnjoinableError as error:
        return replace(told, undecided=str(error))
    if len(waits.waits) < LEAST_UNITS:
        few = f"{len(waits.waits)} steps were profiled; {LEAST_UNITS} decide at the earliest"
        return replace(told, waits=waits, undecided=few)
    compared = replace(told, waits=waits)
    late = find_late(waits, compared.unit_seconds)
    if late is None:
        return compared
    late = replace(late, saved=min(late.saved, _shown(compared, late)))
    return replace(compared, late=late, longer=_longer(compared, late))


def _shown(told: Told, late: Late) -> float:
    """How much longer than it the others communicate while nothing computes: of what they wait,
    only that shows."""
    exposed = {rank: one.exposed for rank, one in _joined(told).items()}
    own = exposed.pop(late.rank)
    return max(0.0, min(exposed.values()) - own) / late.units


def _longer(told: Told, late: Late) -> dict[str, float]:
    parts = {rank: one.parts for rank, one in _joined(told).items()}
    own = parts.pop(late.rank, {})
    return {
        name: (value - float(np.median([part.get(name, 0.0) for part in parts.values()])))
        / late.units
        for name, value in own.items()
    }


def _joined(told: Told) -> dict[int | None, Split]:
    """Of the ranks that could be compared."""
    compared = told.waits.ranks if told.waits is not None else ()
    by_rank = {told.ranks[place]: one for place, one in told.splits.items()}
    return {rank: one for rank, one in by_rank.items() if rank in compared}
