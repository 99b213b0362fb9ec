"""What the births say of data loading, and what to type to change it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mgpu_doctor.case.model import HostSample, Json, Rank

SATURATED = 90.0
"""Host CPU use, in percent of all cores, from which more workers cannot help (vendor rules of
Amazon SageMaker Debugger call a CPU above 90 % a bottleneck)."""


@dataclass(frozen=True, slots=True)
class Loader:
    """A rank's data loader; None: unknown."""

    workers: int | None = None
    prefetch: int | None = None
    persistent: bool | None = None
    pinned: bool | None = None
    batch_size: int | None = None


def loader_of(rank: Rank | None) -> Loader:
    """The first loader, which is the one trained from, that the rank's birth certificate tells
    of."""
    loaders: Json = rank.birth.get("loaders") if rank is not None else None
    facts = loaders[0] if isinstance(loaders, list) and loaders else None
    if not isinstance(facts, Mapping):
        return Loader()
    return Loader(
        workers=_whole(facts.get("workers")),
        prefetch=_whole(facts.get("prefetch_factor")),
        persistent=_flag(facts.get("persistent_workers")),
        pinned=_flag(facts.get("pin_memory")),
        batch_size=_whole(facts.get("batch_size")),
    )


def cpu_use(samples: tuple[HostSample, ...]) -> float | None:
    """Mean use of the host's cores, 0..100; None: not sampled."""
    known = [one.cpu_percent for one in samples if one.cpu_percent is not None]
    return sum(known) / len(known) if known else None


def how_to_load_faster(loader: Loader, cpu: float | None) -> str:
    """What to type, knowing the present settings."""
    busy = cpu is not None and cpu >= SATURATED
    if loader.workers == 0:
        caveat = (
            f" The host's cores are {cpu:.0f} % busy: if making a batch computes rather than waits "
            "for storage, do less of it in `__getitem__` (decode and resize once, beforehand)."
            if busy
            else ""
        )
        return (
            "DataLoader(..., num_workers=4, persistent_workers=True): it is num_workers=0 now, so "
            f"every batch is made while training waits.{caveat}"
        )
    if busy:
        return (
            f"The host's cores are {cpu:.0f} % busy, so more workers would not help: do less in "
            "`__getitem__` (decode and resize once, beforehand), or give the job more cores."
        )
    if loader.workers is not None:
        more = max(4, 2 * loader.workers)
        kept = "" if loader.persistent else ", persistent_workers=True"
        ahead = f", prefetch_factor={2 * (loader.prefetch or 2)}"
        return (
            f"DataLoader(..., num_workers={more}{ahead}{kept}): it is "
            f"num_workers={loader.workers} now. If that does not help, profile the dataset's "
            "`__getitem__` and its storage."
        )
    return (
        "Make batches in the background: with torch, DataLoader(..., num_workers=4, "
        "persistent_workers=True); with your own loader, a thread that stays one batch ahead."
    )


def _whole(value: Json) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _flag(value: Json) -> bool | None:
    return value if isinstance(value, bool) else None
