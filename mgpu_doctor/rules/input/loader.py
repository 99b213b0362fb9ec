"""Why batches come late, in words, and what to type."""

from __future__ import annotations

from mgpu_doctor.case.birth import Loader
from mgpu_doctor.formatting import format_seconds
from mgpu_doctor.rules.input.feeding import Feeding, Why, loader_of
from mgpu_doctor.rules.rule import Limits

__all__ = ["how_to_load_faster", "loader_of", "told"]


HOW = {
    Why.STARTS: "DataLoader(..., persistent_workers=True): its workers stay from epoch to epoch "
    "then, with the copies of the dataset that they hold. (A DistributedSampler needs set_epoch as "
    "before.)",
    Why.HANDED_OVER: "Put fewer and larger tensors into a batch (`collate_fn`): each crosses from "
    "the worker on its own. With a GPU, pin_memory=True receives them in a thread of its own. "
    "Where making a batch takes no longer than receiving it, num_workers=0 is faster.",
    Why.DIVIDED: "Larger batches, where memory and convergence allow; or fewer replicas.",
}
"""What helps whatever the loader's settings are."""


def how_to_load_faster(fed: Feeding, limits: Limits) -> str:
    """What to type, knowing the present settings and what the loader waits for."""
    loader, busy = fed.loader, fed.busy(limits)
    full = _full(fed)
    less = "do less of it in `__getitem__` (decode and resize once, beforehand)"
    if fed.why in HOW:
        return HOW[fed.why]
    if loader.workers == 0:
        caveat = ""
        if busy and fed.why is not Why.WAITS:
            unless = "" if fed.why is Why.COMPUTES else "if making a batch computes, "
            caveat = f" But {full}: {unless}{less}."
        return (
            "DataLoader(..., num_workers=4, persistent_workers=True): it is num_workers=0 now, so "
            f"every batch is made while training waits.{caveat}"
        )
    if busy and fed.why is not Why.WAITS:
        return (
            f"{_capital(full)}, so more workers would not help: do less in "
            "`__getitem__` (decode and resize once, beforehand), or give the job more cores."
        )
    if loader.workers is not None:
        more = max(4, 2 * loader.workers)
        kept = "" if loader.persistent else ", persistent_workers=True"
        ahead = f", prefetch_factor={2 * (loader.prefetch or 2)}"
        rest = {
            Why.WAITS: "They sleep most of the time, so more of them cost no core. Better still: "
            "files on a local disk, fewer and larger files, a cache of decoded samples.",
            Why.COMPUTES: f"They compute all the time and cores are left. If that does not help, "
            f"{less}.",
            Why.UNKNOWN: "If that does not help, profile the dataset's `__getitem__` and its "
            "storage.",
        }[fed.why]
        return (
            f"DataLoader(..., num_workers={more}{ahead}{kept}): it is "
            f"num_workers={loader.workers} now. {rest}"
        )
    return (
        "Make batches in the background: with torch, DataLoader(..., num_workers=4, "
        "persistent_workers=True); with your own loader, a thread that stays one batch ahead."
    )


def told(fed: Feeding, limits: Limits) -> str:
    """Why all ranks wait for data, in words."""
    loader = fed.loader
    disk = "a disk" if fed.on_disk else "storage, a network, a lock or a sleep"
    if loader.workers == 0:
        made = "The loader has no workers (num_workers=0): each batch is made while training waits"
        return (
            made
            + {
                Why.WAITS: f", and most of that time is spent waiting for {disk}.",
                Why.COMPUTES: ", and making it computes.",
                Why.UNKNOWN: ".",
            }[fed.why]
        )
    if fed.why is Why.STARTS:
        return (
            f"The loader starts its {loader.workers} worker{'s' * (loader.workers != 1)} anew for "
            f"each epoch of {loader.batches} batches (persistent_workers=False), and the first "
            f"batch of each waits {format_seconds(fed.first or 0.0)} for them."
        )
    if fed.why in (Why.HANDED_OVER, Why.DIVIDED):
        return _keeps_up(loader, fed.why)
    if fed.busy(limits) and fed.why is not Why.WAITS:
        return f"{_capital(_full(fed))}: preparing data competes with training."
    if loader.workers is not None:
        return _of_workers(loader, fed.why, disk)
    return {
        Why.WAITS: f"Making a batch does not overlap with training, and mostly waits for {disk}.",
        Why.COMPUTES: "Making a batch computes, and does not overlap with training.",
        Why.UNKNOWN: "Making a batch takes long and does not overlap with training; why was not "
        "measured.",
    }[fed.why]


def _keeps_up(loader: Loader, why: Why) -> str:
    if why is Why.DIVIDED:
        return (
            "Dividing a batch over this process's replicas takes about that long, whatever its "
            "data set does."
        )
    return (
        f"The loader's workers keep up (num_workers={loader.workers}): a batch was ready when it "
        "was asked for. Receiving it from another process takes that long."
    )


def _of_workers(loader: Loader, why: Why, disk: str) -> str:
    ahead = "" if loader.prefetch is None else f", prefetch_factor={loader.prefetch}"
    reason = {
        Why.WAITS: f"each sleeps most of the time, waiting for {disk}.",
        Why.COMPUTES: "each computes all the time, and there are too few of them.",
        Why.UNKNOWN: "too few, or the dataset or its storage is slow.",
    }[why]
    alone = " They prepare one batch ahead only." if loader.prefetch == 1 else ""
    now = f"num_workers={loader.workers}{ahead}"
    return f"The loader's workers cannot keep up ({now}): {reason}{alone}"


def _full(fed: Feeding) -> str:
    if fed.throttled:
        return "the job's CPU quota is used up"
    return f"the host's cores are {100 * (fed.cpu or 0.0):.0f} % busy"


def _capital(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}"
