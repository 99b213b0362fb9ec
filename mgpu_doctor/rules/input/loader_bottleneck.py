"""Why batches come late: how the loader is set up, what its workers do, and what helps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

import numpy as np
from mgpu_probes.inprocess.layout import BATCH_READY, INPUT

from mgpu_doctor.analysis.machines.cpu_contention import UNSEEN, IdleShare, idle_share
from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.analysis.steps.phase_shares import at_epoch_starts
from mgpu_doctor.analysis.steps.warm_up import after_warm_up
from mgpu_doctor.case.device_times import on_one_clock
from mgpu_doctor.case.host_samples import HostSample
from mgpu_doctor.case.model import Rank
from mgpu_doctor.case.process_metadata import Loader
from mgpu_doctor.formatting import format_seconds, format_share
from mgpu_doctor.rules.rule import Limit, Limits

ON_DISK = 0.2
"""Share of samples in uninterruptible sleep from which a disk is named as the reason: many loaders
read from the page cache."""

MOSTLY = 0.5
"""Share of the wait at the start of epochs, or for batches that were ready, from which these are
its cause."""

SATURATED = Limit(
    "saturated",
    0.9,
    "fraction",
    "use of the host's cores from which more workers cannot help (vendor rules of Amazon SageMaker "
    "Debugger call a CPU above 90 % a bottleneck).",
)
COMPUTES = Limit(
    "computes",
    0.7,
    "fraction",
    "share of time in which the process that makes batches ran or waited for a core, from which "
    "it is CPU-bound: well above half.",
)
WAITS = Limit(
    "waits",
    0.5,
    "fraction",
    "share of the wait for data in which the process that makes batches slept, from which it is "
    "bound by storage, a network or a sleep: half.",
)


DIVIDING = 0.005
"""Seconds per batch. The iterator of a TensorFlow strategy divides a batch over a process's
replicas in less time (measured: 1.4 to 1.8 ms over two CPUs, more on a loaded machine), so a
shorter wait says nothing about the data set."""


class Why(Enum):
    """Why batches come late."""

    WAITS = "waits"
    """The process that makes them sleeps: storage, a network, a lock."""
    COMPUTES = "computes"
    STARTS = "starts"
    """The loader restarts its workers for each epoch."""
    HANDED_OVER = "handed over"
    """They are not late: workers have them ready, but receiving one takes that long."""
    DIVIDED = "divided"
    """They are not late: dividing one over the replicas of a process takes that long."""
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Feeding:
    """How the ranks get their batches; medians over ranks, None: not measured."""

    loader: Loader
    cpu: float | None
    """Use of the host's cores, 0..1."""
    throttled: bool
    """The job sometimes uses up its CPU quota."""
    working: float | None
    """Share of time in which a worker ran or waited for a core."""
    idle: IdleShare | None
    """Without workers: how much of the wait for data the main thread slept."""
    on_disk: bool
    """The process that makes the batches often waits for a disk."""
    first: float | None
    """Seconds of waiting for the first batch of an epoch, if that is most of the wait."""
    why: Why
    ready: float | None
    """With workers: share of the wait for data in steps for which a batch was ready when asked."""

    def busy(self, limits: Limits) -> bool:
        """Whether no core is left for more workers."""
        return self.throttled or (self.cpu is not None and self.cpu >= limits["saturated"])

    def lacks_cores(self, limits: Limits) -> bool:
        """Whether making batches takes CPU time, and no core is left for more workers."""
        return self.busy(limits) and self.why is not Why.WAITS


def feeding(measures: Measures, limits: Limits, only: int | None = None) -> Feeding:
    """How the ranks get their batches: all ranks, or one."""
    chosen = (rank for rank in measures.case.ranks if only is None or rank.rank == only)
    ranks = [on_one_clock(rank) for rank in chosen]
    around = [measures.surroundings.get(_number(rank), UNSEEN) for rank in ranks]
    loader = next(
        (loader for rank in ranks if (loader := loader_of(rank)).workers is not None), Loader()
    )
    throttled = _middle(surroundings.throttled for surroundings in around)
    first = _middle(_first_wait(rank) for rank in ranks)
    children = [
        surroundings.children for surroundings in around if surroundings.children is not None
    ]
    working = idle = on_disk = ready = None
    if loader.workers:
        working = _middle(
            None if child.running is None else child.running + (child.queueing or 0.0)
            for child in children
        )
        on_disk = _middle(child.on_disk for child in children)
        ready = _middle(_ready_share(rank) for rank in ranks)
    else:
        pairs = zip(ranks, around, strict=True)
        idle = _middle_idle(idle_share(rank, INPUT, surroundings) for rank, surroundings in pairs)
        on_disk = _middle(surroundings.on_disk for surroundings in around)
    why = _why(working, idle, ready, limits) if first is None else Why.STARTS
    if why is not Why.STARTS and ranks and all(_only_divides(rank) for rank in ranks):
        why = Why.DIVIDED
    return Feeding(
        loader=loader,
        cpu=cpu_use(measures.case.host_samples),
        throttled=(throttled or 0.0) >= 0.1,
        working=working,
        idle=idle,
        on_disk=(on_disk or 0.0) >= ON_DISK,
        first=first,
        why=why,
        ready=ready,
    )


def loader_of(rank: Rank | None) -> Loader:
    """The first loader in the rank's process metadata, which is the one trained from."""
    return rank.metadata.loader if rank is not None else Loader()


def cpu_use(samples: tuple[HostSample, ...]) -> float | None:
    """Mean use of the host's cores, 0..1; None: not sampled."""
    known = [sample.cpu_percent for sample in samples if sample.cpu_percent is not None]
    return sum(known) / len(known) / 100 if known else None


def _why(working: float | None, idle: IdleShare | None, ready: float | None, limits: Limits) -> Why:
    if ready is not None and ready >= MOSTLY:
        return Why.HANDED_OVER
    if working is not None:
        if working >= limits["computes"]:
            return Why.COMPUTES
        return Why.WAITS if working <= 1 - limits["computes"] else Why.UNKNOWN
    if idle is not None and idle.least >= limits["waits"]:
        return Why.WAITS
    if idle is not None and idle.most < limits["waits"]:
        return Why.COMPUTES
    return Why.UNKNOWN


def _first_wait(rank: Rank) -> float | None:
    """Seconds of waiting for an epoch's first batch; None if workers stay, or if it is less than
    half of the wait."""
    loader = loader_of(rank)
    if not loader.workers or loader.persistent is not False:
        return None
    waits = at_epoch_starts(rank, loader.batches)
    return waits[1] if waits is not None and waits[0] >= MOSTLY else None


def _only_divides(rank: Rank) -> bool:
    replicas = rank.metadata.replicas
    return replicas is not None and replicas > 1 and (_wait(rank) or 0.0) < DIVIDING


def _ready_share(rank: Rank) -> float | None:
    steps = after_warm_up(rank.steps)
    seconds = np.nan_to_num(steps["phases"][:, INPUT].astype(float))
    waited = float(seconds.sum())
    return float(seconds[steps["flags"] & BATCH_READY != 0].sum()) / waited if waited > 0 else None


def _wait(rank: Rank) -> float | None:
    """Median wait for the batch of a step, in seconds; None: not measured."""
    seconds = after_warm_up(rank.steps)["phases"][:, INPUT]
    known = seconds[~np.isnan(seconds)]
    return float(np.median(known)) if len(known) else None


def _middle(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.median(known)) if known else None


def _middle_idle(shares: Iterable[IdleShare | None]) -> IdleShare | None:
    """The bounds of the median rank. Of two ranks, what one did is not averaged with the other."""
    known = [share for share in shares if share is not None]
    if not known:
        return None
    least = sorted(share.least for share in known)[(len(known) - 1) // 2]
    most = sorted(share.most for share in known)[len(known) // 2]
    return IdleShare(least, most)


def _number(rank: Rank) -> int:
    return -1 if rank.rank is None else rank.rank


HOW = {
    Why.STARTS: "`DataLoader(..., persistent_workers=True)`: the workers then stay from epoch to "
    "epoch, with their copies of the dataset. (A DistributedSampler needs set_epoch as before.)",
    Why.HANDED_OVER: "Put fewer and larger tensors into a batch (`collate_fn`): each is sent from "
    "the worker separately. With a GPU, pin_memory=True receives them in a separate thread. If "
    "making a batch takes no longer than receiving it, num_workers=0 is faster.",
    Why.DIVIDED: "Larger batches, if memory and convergence allow; or fewer replicas.",
}
"""Advice that does not depend on the loader's settings."""


def how_to_load_faster(fed: Feeding, limits: Limits) -> str:
    """The advice for the current settings and for what the loader waits for."""
    loader, lacks_cores = fed.loader, fed.lacks_cores(limits)
    full = _full(fed)
    less = "do less of it in `__getitem__` (decode and resize once, beforehand)"
    if fed.why in HOW:
        return HOW[fed.why]
    if loader.workers == 0:
        caveat = ""
        if lacks_cores:
            unless = "" if fed.why is Why.COMPUTES else "if making a batch computes, "
            caveat = f" But {full}: {unless}{less}."
        return (
            "`DataLoader(..., num_workers=4, persistent_workers=True)`: it is num_workers=0 now, "
            f"so every batch is made while training waits.{caveat}"
        )
    if lacks_cores:
        return (
            f"{_capital(full)}, so more workers would not help: do less in `__getitem__` (decode "
            "and resize once, beforehand), or give the job more cores."
        )
    if loader.workers is not None:
        more = max(4, 2 * loader.workers)
        kept = "" if loader.persistent else ", persistent_workers=True"
        ahead = f", prefetch_factor={2 * (loader.prefetch or 2)}"
        rest = {
            Why.WAITS: "They sleep most of the time, so more of them cost no core. Better still: "
            "files on a local disk, fewer and larger files, a cache of decoded samples.",
            Why.COMPUTES: "They compute all the time, and cores are free. If that does not help, "
            f"{less}.",
            Why.UNKNOWN: "If that does not help, profile the dataset's `__getitem__` and its "
            "storage.",
        }[fed.why]
        return (
            f"`DataLoader(..., num_workers={more}{ahead}{kept})`: it is "
            f"num_workers={loader.workers} now. {rest}"
        )
    return (
        "Make batches in the background: with torch, `DataLoader(..., num_workers=4, "
        "persistent_workers=True)`; with your own loader, a thread that stays one batch ahead."
    )


def explain_wait(fed: Feeding, limits: Limits) -> str:
    """Sentences that say why all ranks wait for data."""
    loader = fed.loader
    disk = "a disk" if fed.on_disk else "storage, a network, a lock or a sleep"
    if loader.workers == 0:
        made = "The loader has no workers (num_workers=0): each batch is made while training waits"
        return (
            made
            + {
                Why.WAITS: f", mostly waiting for {disk}.",
                Why.COMPUTES: ", which takes CPU time.",
                Why.UNKNOWN: f".{_of_unknown(fed)}",
            }[fed.why]
        )
    if fed.why is Why.STARTS:
        return (
            f"The loader restarts its {loader.workers} worker{'s' * (loader.workers != 1)} for "
            f"each epoch of {loader.batches} batches (persistent_workers=False), and the first "
            f"batch of each epoch takes {format_seconds(fed.first or 0.0)}."
        )
    if fed.why in (Why.HANDED_OVER, Why.DIVIDED):
        return _keeps_up(loader, fed.why)
    if fed.lacks_cores(limits):
        return f"{_capital(_full(fed))}: preparing data competes with training."
    if loader.workers is not None:
        return _of_workers(loader, fed.why, disk)
    return {
        Why.WAITS: f"Making a batch does not overlap with training, and mostly waits for {disk}.",
        Why.COMPUTES: "Making a batch takes CPU time and does not overlap with training.",
        Why.UNKNOWN: "Making a batch does not overlap with training."
        + (_of_unknown(fed) or " The reason for its duration was not measured."),
    }[fed.why]


def _of_unknown(fed: Feeding) -> str:
    """Why it is unknown whether the main thread slept while it made a batch. Begins with a space;
    empty if nothing was measured."""
    if fed.idle is None:
        return ""
    return (
        " Whether that computes or sleeps is unknown: CPU time is measured per step, and the main "
        f"thread slept for between {format_share(fed.idle.least)} and "
        f"{format_share(fed.idle.most)} of this wait."
    )


def _keeps_up(loader: Loader, why: Why) -> str:
    if why is Why.DIVIDED:
        return (
            "Splitting a batch over the replicas of this process takes about that long, whatever "
            "the data set does."
        )
    return (
        f"The loader's workers keep up (num_workers={loader.workers}): a batch was ready when it "
        "was requested. Receiving it from the worker process takes that long."
    )


def _of_workers(loader: Loader, why: Why, disk: str) -> str:
    ahead = "" if loader.prefetch is None else f", prefetch_factor={loader.prefetch}"
    reason = {
        Why.WAITS: f"each sleeps most of the time, waiting for {disk}.",
        Why.COMPUTES: "each computes all the time, and there are too few of them.",
        Why.UNKNOWN: "there are too few, or the dataset or its storage is slow.",
    }[why]
    alone = " They prepare only one batch ahead." if loader.prefetch == 1 else ""
    now = f"num_workers={loader.workers}{ahead}"
    return f"The loader's workers cannot keep up ({now}): {reason}{alone}"


def _full(fed: Feeding) -> str:
    if fed.throttled:
        return "the job's CPU quota is used up"
    return f"the host's cores are {100 * (fed.cpu or 0.0):.0f} % busy"


def _capital(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}"
