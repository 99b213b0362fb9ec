"""What explains a straggler's excess, in words: found, ruled out, or not measured."""

from __future__ import annotations

from collections.abc import Iterable

from mgpu_doctor.analysis.machines.cpu_contention import UNSEEN
from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.analysis.stragglers.straggler_causes import DECIDES, HOST, Cause
from mgpu_doctor.formatting import format_seconds

NOTHING = 0.2
"""Share of the excess below which a cause is ruled out."""

NAMES = {
    "data": "more data",
    "gc": "garbage collection",
    "checkpoint": "saving",
    "evaluation": "evaluation",
    "host-contended": "others on its cores",
    "host-throttled": "its CPU quota",
    "host-cores": "fewer cores",
    "host-paging": "memory that comes and goes",
    "idle": "sleep or I/O",
}
EXPLAINED = {
    "data": "its batches hold more samples or tokens than the others', which explains {}",
    "gc": "Python's garbage collector explains {}",
    "checkpoint": "saving explains {}",
    "evaluation": "evaluation explains {}",
    "host-contended": "its main thread stood ready while others had its cores for {}",
    "host-throttled": "its control group had no CPU quota left for {}",
    "host-cores": "its threads have fewer cores, which explains {}",
    "host-paging": "its allocator hands memory back to the kernel and takes it anew in every step, "
    "which explains {}",
    "idle": "its main thread neither ran nor stood ready for {}: it slept, or waited for "
    "storage, a lock or another process",
}
OF_A_POOL = {
    "host-contended": "its threads stood ready without a core for {}",
}
"""The same of a rank whose main thread waits for those that compute."""
COMPUTING = frozenset({*HOST, "idle"})
"""Where all of these are ruled out, the CPU works for the rank all the time."""


def said(measures: Measures, rank: int) -> str:
    """Sentences about a straggler's causes; empty where none was looked at."""
    causes = measures.causes.get(rank, ())
    excess = next((one.excess for one in measures.stragglers or () if one.rank == rank), 0.0)
    told = [one for one in causes if (one.share or 0.0) >= NOTHING]
    ruled_out = [one.name for one in causes if one.share is not None and one.share < NOTHING]
    unknown = [one.name for one in causes if one.seconds is None]
    words = EXPLAINED | (OF_A_POOL if _pooled(measures, rank) else {})
    sentences = [words[one.name].format(_part(one, excess)) for one in told]
    if not told and set(ruled_out) >= COMPUTING:
        sentences.append(
            "its main thread computes all that time: its code does more, or its cores are slower"
        )
    if ruled_out:
        sentences.append(f"ruled out: {_listed(ruled_out)}")
    if unknown:
        sentences.append(f"not measured: {_listed(unknown)}")
    return " ".join(f"{one[0].upper()}{one[1:]}." for one in sentences)


def _pooled(measures: Measures, rank: int) -> bool:
    return measures.surroundings.get(rank, UNSEEN).pooled


def cause_named(measures: Measures, rank: int, name: str) -> Cause | None:
    """What one cause explains of a straggler's excess; None: it was not looked at."""
    return next((one for one in measures.causes.get(rank, ()) if one.name == name), None)


def decides(cause: Cause | None) -> bool:
    """Whether it explains enough to be the cause."""
    return cause is not None and cause.share is not None and cause.share >= DECIDES


def _part(one: Cause, excess: float) -> str:
    most = min(one.seconds or 0.0, excess)
    return (
        f"{format_seconds(most)} of the {format_seconds(excess)}"
        if most < 0.9 * excess
        else "all of it"
    )


def _listed(names: Iterable[str]) -> str:
    known = [NAMES[name] for name in NAMES if name in set(names)]
    return known[0] if len(known) == 1 else f"{', '.join(known[:-1])} and {known[-1]}"
