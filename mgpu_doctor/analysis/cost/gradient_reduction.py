"""How DistributedDataParallel exchanges gradients: how often, how much of it backward hides, and
what other bucket sizes would hide. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mgpu_doctor.analysis.statistics.significance import LEAST_STEPS
from mgpu_doctor.analysis.steps.warm_up import after_warm_up
from mgpu_doctor.case.model import Rank

HALVINGS = 40
SPREAD = 64
"""Ranks that are asked, of however many."""
REPEAT_BACKWARD = frozenset({"LBFGS"})
"""Optimizers that run backward several times in one step, each time with new parameters."""


def sample_ranks(ranks: Sequence[Rank]) -> Sequence[Rank]:
    """Most ranks to look at, evenly spread, for settings that are equal on all ranks."""
    return ranks[:: -(-len(ranks) // SPREAD)] if ranks else ranks


@dataclass(frozen=True, slots=True)
class Reduction:
    """One backward pass as DistributedDataParallel logged it; seconds and bytes."""

    backward: float
    """Seconds of the median rank."""
    communication: float
    """From the first bucket to the last, of the rank with the least."""
    exposed: float
    """The same after the last gradient was computed."""
    buckets: tuple[int, ...]
    cap: int | None


def logged_reduction(ranks: Sequence[Rank]) -> Reduction | None:
    """None where a rank has not logged it. The least over ranks has the least wait for others in
    it; as it is the least of typical values, it is an upper bound of what is exposed."""
    asked = sample_ranks(ranks)
    modules = [ddp for rank in asked if (ddp := rank.metadata.ddp) is not None]
    known = [
        (module.backward_seconds, module.communication_seconds, module.overlap_seconds)
        for module in modules
        if module.backward_seconds is not None
        and module.communication_seconds is not None
        and module.overlap_seconds is not None
    ]
    if not known or len(known) < len(asked):
        return None
    return Reduction(
        backward=float(np.median([backward for backward, _, _ in known])),
        communication=min(communication for _, communication, _ in known),
        exposed=max(0.0, min(communication - overlap for _, communication, overlap in known)),
        buckets=modules[0].buckets,
        cap=modules[0].bucket_cap_bytes,
    )


def exposed_seconds(backward: float, transfer: float, buckets: Sequence[int]) -> float:
    """Seconds of communication that a backward pass of `backward` seconds cannot hide, if
    transferring all bytes takes `transfer` seconds. Assumes that buckets are sent one after the
    other and that gradients become ready evenly over the backward pass (after Li et al., "PyTorch
    Distributed", VLDB 2020); ignores latencies."""
    whole = sum(buckets)
    done = ready = 0.0
    for size in buckets:
        ready += backward * size / whole
        done = max(done, ready) + transfer * size / whole
    return done - ready


def transfer_seconds(backward: float, measured: float, buckets: Sequence[int]) -> float:
    """Seconds that moving all bytes takes where `measured` seconds are exposed: `exposed` solved
    for its second argument, which lies between those and all of backward more."""
    low, high = measured, measured + backward
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if exposed_seconds(backward, middle, buckets) < measured:
            low = middle
        else:
            high = middle
    return (low + high) / 2


@dataclass(frozen=True, slots=True)
class Exchanges:
    """Counts per mean step of how often a rank exchanges gradients."""

    passes: float
    """Backward passes."""
    synced: float
    """Backward passes that exchange gradients."""
    updates: float
    """Optimizer steps; each needs at most one exchange."""

    @property
    def needless(self) -> float:
        """Share, 0..1, of the exchanges that no update needs."""
        return max(0.0, 1 - self.updates / self.synced) if self.synced > 0 else 0.0


def count_exchanges(rank: Rank) -> Exchanges | None:
    """The counts; None without DistributedDataParallel, or if its counters are incomplete."""
    module = rank.metadata.ddp
    if module is None or not module.forwards or module.synced is None:
        return None
    updates, records = _updates(rank), after_warm_up(rank.steps)
    if updates is None or len(records) < LEAST_STEPS:
        return None
    passes = float(np.median(records["micro_batches"]))
    synced = passes * min(1.0, module.synced / module.forwards)
    return Exchanges(passes, synced, updates)


def _updates(rank: Rank) -> float | None:
    """Optimizer steps a step: as the samples of the parameters counted them, else one if there is
    one optimizer."""
    known = rank.metadata.optimizers
    if any(optimizer.kind in REPEAT_BACKWARD for optimizer in known):
        return None
    last = max(rank.metadata.weights, key=lambda weight: weight.step, default=None)
    if last is not None and last.step and last.updates:
        return float(max(1, round(last.updates / last.step)))
    return 1.0 if len(known) == 1 else None
