"""Helpers for rules about GPU use: utilization, phases, memory and a larger batch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from mgpu_probes.inprocess.layout import BACKWARD, FORWARD, INPUT, OPTIMIZER, WAIT

from mgpu_doctor.analysis.machines.rank_devices import LEAST_SAMPLES, Use, use_of, within
from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.analysis.steps.phase_shares import phase_shares
from mgpu_doctor.analysis.steps.warm_up import after_warm_up
from mgpu_doctor.case.device_times import on_one_clock
from mgpu_doctor.case.model import Rank
from mgpu_doctor.case.process_metadata import Loader
from mgpu_doctor.findings import Fix, Predicted
from mgpu_doctor.rules import advice

PRETEND = "written against pretend device data; not yet seen on a GPU"
"""The `unverified` text of rules that need a GPU."""


def uses(measures: Measures) -> dict[int, Use]:
    """Rank -> use of its device; empty unless the device of every rank is known."""
    uses_by_rank = {number: device.use for number, device in (measures.devices or {}).items()}
    return uses_by_rank if {rank.rank for rank in measures.case.ranks} == set(uses_by_rank) else {}


def uses_since(measures: Measures, step: int | None) -> dict[int, Use]:
    """Rank -> use of its device in the compared steps from `step` on; None: from the first."""
    joined = measures.joined
    if joined is None:
        return {}
    first = 0 if step is None else int(np.searchsorted(joined.steps, step))
    uses = {}
    for column, rank in enumerate(joined.ranks):
        device = (measures.devices or {}).get(rank)
        if device is None:
            continue
        end, wall = joined.end[first:, column], joined.wall[first:, column]
        begin = np.min(end - wall, initial=np.inf, where=~np.isnan(end - wall))
        last = np.max(end, initial=-np.inf, where=~np.isnan(end))
        series = within(device.series, float(begin), float(last))
        if len(series) >= LEAST_SAMPLES:
            uses[rank] = use_of(series)
    return uses


def utilizations(measures: Measures) -> dict[int, tuple[float, float]]:
    """Rank -> mean and 95th percentile of its device's utilization, 0..1; empty unless all are
    known."""
    known = uses(measures)
    values_by_rank = {
        number: (use.utilization, use.utilization_high)
        for number, use in known.items()
        if use.utilization is not None and use.utilization_high is not None
    }
    return values_by_rank if len(values_by_rank) == len(known) else {}


def most_share(measures: Measures, phase: int, only: Sequence[int] | None = None) -> float:
    """The largest share of a rank's time in a phase, over all or some ranks, by the device's clock
    if it timed any step, else by the host's; 0 if not measured. For reasons to stay silent."""
    chosen = [rank for rank in measures.case.ranks if only is None or rank.rank in only]
    timed = [(rank, on_one_clock(rank)) for rank in chosen]
    ranks = [by_device if len(by_device.steps) else rank for rank, by_device in timed]
    return max((phase_shares(ranks, phase) or {0: 0.0}).values())


def host_busy(rank: Rank) -> float | None:
    """Upper bound of the share of time in which the host of a rank computed; None: unknown.

    The main thread's CPU time plus the backward pass, which autograd runs in its own thread with
    CUDA while the main thread sleeps. It is unknown whether that thread computes or waits, so this
    is an upper bound; while the device is idle, the thread has nothing to wait for.
    """
    records = after_warm_up(rank.steps)
    running = records["cpu_s"].astype(float)
    if not len(records) or np.isnan(running).all():
        return None
    backward = np.nan_to_num(records["phases"][:, BACKWARD].astype(float))
    wall = records["wall_ns"] * 1e-9
    return min(1.0, float(np.nansum(running) + backward.sum()) / float(wall.sum()))


def model_share(rank: Rank) -> float:
    """Share of its time that a rank's host spent in forward, backward and optimizer."""
    records = after_warm_up(rank.steps)
    phases = records["phases"][:, [FORWARD, BACKWARD, OPTIMIZER]].astype(float)
    wall = float(records["wall_ns"].sum()) * 1e-9
    return float(np.nansum(phases)) / wall if wall > 0 else 0.0


def held_up(measures: Measures, limit: float) -> bool:
    """Whether waiting for data or for other ranks explains an idle device better."""
    return max(most_share(measures, INPUT), most_share(measures, WAIT)) >= limit


def middle(values: Iterable[float | None]) -> float | None:
    """The median of the known values."""
    known = [value for value in values if value is not None]
    return float(np.median(known)) if known else None


def first_loader(rank: Rank) -> Loader:
    """The loader that a rank trains from; an empty one if its metadata names none."""
    return rank.metadata.loader


def memory_share(measures: Measures) -> float | None:
    """The highest memory use, 0..1, of the fullest device; None if any device's is unknown."""
    known = uses(measures).values()
    shares = [o.memory_used / o.memory_total for o in known if o.memory_used and o.memory_total]
    return max(shares) if shares and len(shares) == len(known) else None


def larger_batch(measures: Measures, summary: str) -> Fix:
    """The fix to give each rank more samples per step."""
    sizes = (first_loader(rank).batch_size for rank in measures.case.ranks)
    now = next((size for size in sizes if size), None)
    how = advice.in_loader(batch_size=2 * now) if now else "Double the batch of each rank"
    basis = "not predicted: the step time with a larger batch was not measured"
    return Fix(
        "larger-batch",
        summary,
        f"{how}, and again while memory and utilization allow. {advice.LARGER_BATCH}",
        Predicted(None, None, basis),
    )
