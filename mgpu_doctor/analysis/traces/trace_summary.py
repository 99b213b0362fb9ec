"""The measures of a case's profiler traces: time by activity, waits, and the late rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from mgpu_doctor.analysis.traces.joined_collectives import UnjoinableError, Waits, join
from mgpu_doctor.analysis.traces.late_rank import LEAST_UNITS, Late, find_late
from mgpu_doctor.analysis.traces.time_split import Split, split, step_lengths, without_first_steps
from mgpu_doctor.case.profiler_traces import Trace


@dataclass(frozen=True, slots=True)
class TraceSummary:
    """Measures of all traces of a case; times in seconds."""

    splits: Mapping[int, Split]
    """Index in the case's traces -> its time split."""
    ranks: Mapping[int, int | None]
    """Index in the case's traces -> rank; None: the trace does not say."""
    on_device: bool
    steps: int | None
    """Steps that the profiler marked, on the rank with the most; None: no marks."""
    step_seconds: float | None
    """Mean step time of the job."""
    step_medians: Mapping[int | None, float]
    """Rank -> median step time, if its steps are marked."""
    world: int
    waits: Waits | None = None
    late: Late | None = None
    undecided: str | None = None
    """Why the ranks were not compared; None if they were."""
    longer: Mapping[str, float] | None = None
    """Part of the late rank's work -> seconds per unit beyond the median of the other ranks."""

    @property
    def unit_seconds(self) -> float:
        """Mean seconds of a row of `waits`: a step, or a stretch of one."""
        widest = max((split.window for split in self.splits.values()), default=0.0)
        return widest / len(self.waits.waits) if self.waits is not None else widest


def summarize_traces(traces: Sequence[Trace], world: int | None) -> TraceSummary | None:
    """The measures of all traces; None if no trace has usable events."""
    traces = without_first_steps(traces)
    by_place = {place: split(trace) for place, trace in enumerate(traces)}
    splits = {place: parts for place, parts in by_place.items() if parts is not None}
    if not splits:
        return None
    lengths = {traces[place].rank: step_lengths(traces[place]) for place in splits}
    marked = [length for length in lengths.values() if len(length)]
    summary = TraceSummary(
        splits=splits,
        ranks={place: traces[place].rank for place in splits},
        on_device=all(traces[place].on_device for place in splits),
        steps=max((len(values) for values in marked), default=0) or None,
        step_seconds=float(np.mean(np.concatenate(marked))) if marked else None,
        step_medians={
            rank: float(np.median(length)) for rank, length in lengths.items() if len(length)
        },
        world=max(world or 1, len(splits)),
    )
    return _compared(summary, [traces[place] for place in splits])


def _compared(summary: TraceSummary, traces: Sequence[Trace]) -> TraceSummary:
    if summary.world < 2:
        return summary
    try:
        waits = join(traces)
    except UnjoinableError as error:
        return replace(summary, undecided=str(error))
    if len(waits.waits) < LEAST_UNITS:
        few = f"{len(waits.waits)} steps were profiled; {LEAST_UNITS} decide at the earliest"
        return replace(summary, waits=waits, undecided=few)
    compared = replace(summary, waits=waits)
    late = find_late(waits, compared.unit_seconds)
    if late is None:
        return compared
    late = replace(late, saved=min(late.saved, _shown(compared, late)))
    return replace(compared, late=late, longer=_longer(compared, late))


def _shown(summary: TraceSummary, late: Late) -> float:
    """Seconds per unit of the others' waiting that computing does not hide."""
    exposed = {rank: parts.exposed for rank, parts in _joined(summary).items()}
    own = exposed.pop(late.rank)
    return max(0.0, min(exposed.values()) - own) / late.units


def _longer(summary: TraceSummary, late: Late) -> dict[str, float]:
    parts = {rank: split.parts for rank, split in _joined(summary).items()}
    own = parts.pop(late.rank, {})
    return {
        name: (value - float(np.median([part.get(name, 0.0) for part in parts.values()])))
        / late.units
        for name, value in own.items()
    }


def _joined(summary: TraceSummary) -> dict[int | None, Split]:
    """Rank -> its time split, of the ranks that could be compared."""
    compared = summary.waits.ranks if summary.waits is not None else ()
    by_rank = {summary.ranks[place]: split for place, split in summary.splits.items()}
    return {rank: split for rank, split in by_rank.items() if rank in compared}
