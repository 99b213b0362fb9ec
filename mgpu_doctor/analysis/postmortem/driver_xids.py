"""Relates XIDs, the GPU errors that NVIDIA's driver reports, to the ranks on the GPU and to the
ranks that failed because of them. `measures` calls it; the GPU rules read the result."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from mgpu_doctor.analysis.machines.host_devices import Gpu
from mgpu_doctor.analysis.postmortem.rank_failures import RankFailure
from mgpu_doctor.case.device_samples import XidEvent
from mgpu_doctor.case.model import Case, Outcome, Rank
from mgpu_doctor.signatures.signature import Signature
from mgpu_doctor.signatures.xid_codes import APPLICATION, signature_of

BEFORE, AFTER = 60.0, 10.0
"""Seconds before and after a rank's end within which an XID of its device is related to it: a rank
notices an error at its next synchronization, and some XIDs report the end itself. A choice."""
WENT_ON = 10.0
"""Seconds. A rank that finishes a step this long after an XID was not stopped by it. A choice."""


@dataclass(frozen=True, slots=True)
class Xid:
    """All XIDs of one number on one device."""

    gpu: Gpu
    signature: Signature
    events: tuple[XidEvent, ...]
    failures: tuple[RankFailure, ...] = ()
    """Those of the first failures that are on the device and, by their time, due to the XID."""
    stops_rank: bool = False
    """Whether a rank on the device has finished no step since, in a job that still runs."""

    @property
    def number(self) -> int:
        """The XID's number."""
        return self.events[0].number

    @property
    def by_program(self) -> bool:
        """Whether it is usually caused by the program itself."""
        return self.number in APPLICATION

    @property
    def meaning(self) -> str:
        """What it means, for the user, with the device filled in."""
        at = self.gpu.device.bus_id or f"index {self.gpu.index}"
        return self._fill(self.signature.meaning, at)

    @property
    def fix(self) -> str:
        """What to do about it, with the device filled in."""
        return self._fill(self.signature.fix, str(self.gpu.device.bus_id or self.gpu.index))

    def _fill(self, text: str, pci: str) -> str:
        return text.replace("{pci}", pci).replace("{xid}", str(self.number))


def find_xids(gpus: Iterable[Gpu], first: tuple[RankFailure, ...], case: Case) -> tuple[Xid, ...]:
    """All known XIDs, by device and number. `first`: the first failures."""
    xids = []
    for gpu in gpus:
        for number in dict.fromkeys(event.number for event in gpu.xids):
            signature = signature_of(number)
            if signature is not None:
                events = tuple(event for event in gpu.xids if event.number == number)
                ended = _find_failures(gpu, events, first, case)
                xids.append(Xid(gpu, signature, events, ended, _stops_rank(gpu, events, case)))
    return tuple(xids)


def _find_failures(
    gpu: Gpu, events: tuple[XidEvent, ...], first: tuple[RankFailure, ...], case: Case
) -> tuple[RankFailure, ...]:
    if not gpu.ranks or case.job.outcome is Outcome.COMPLETED:
        return ()
    return tuple(
        failure
        for failure in first
        if failure.rank in gpu.ranks
        and any(_belongs(event.at, failure.at or case.job.ended) for event in events)
    )


def _belongs(at: float, ended: float | None) -> bool:
    return ended is None or ended - BEFORE <= at <= ended + AFTER


def _stops_rank(gpu: Gpu, events: tuple[XidEvent, ...], case: Case) -> bool:
    if case.job.outcome not in (Outcome.RUNNING, Outcome.HUNG):
        return False
    since = events[-1].at
    if case.observed < since + WENT_ON:
        return False
    ranks = [rank for rank in case.ranks if rank.rank in gpu.ranks]
    return any(len(rank.steps) and _newest_end(rank) < since + WENT_ON for rank in ranks)


def _newest_end(rank: Rank) -> float:
    """When the rank finished its last step, in seconds since the epoch."""
    return float(rank.steps["end_ns"][-1]) * 1e-9 + rank.clock_offset
