"""The clock that a rank's phases were stamped with, and whether ranks can be compared by it.

While a GPU computes, the host runs ahead: it only queues work. Host stamps then say when work was
queued, not when it ran. A wait for data that the queue hides looks like lost time, and a wait for
other ranks looks like own work. So phases that the host stamped for an asynchronous device are
never compared between ranks, and no gain is predicted from them.
"""

from __future__ import annotations

from collections.abc import Iterable

from mgpu_doctor.case.model import Rank
from mgpu_doctor.case.process_metadata import PhaseClock


def phase_clock(rank: Rank) -> PhaseClock | None:
    """The clock of the rank's phases; None: unknown."""
    return rank.metadata.clock


def device_kind(rank: Rank) -> str:
    """`cpu`, `cuda`, `gpu` (TensorFlow), `xpu`, …: what comes before the index. A rank that names
    no device computes on the CPU."""
    return str(rank.device or "cpu").partition(":")[0].lower()


def is_host_stamped(rank: Rank) -> bool:
    """Whether the rank computes on a device, and anything but that device's clock stamped its
    phases."""
    return device_kind(rank) != "cpu" and phase_clock(rank) is not PhaseClock.DEVICE


def host_stamped(ranks: Iterable[Rank]) -> tuple[Rank, ...]:
    """The ranks whose phases cannot be compared."""
    return tuple(rank for rank in ranks if is_host_stamped(rank))
