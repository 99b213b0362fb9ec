"""XIDs that the driver told while it was listened to: whom they hit, and whether somebody fell."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from mgpu_doctor.analysis.machines.host_devices import Gpu
from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.analysis.postmortem.failure_order import find_first_failures
from mgpu_doctor.analysis.postmortem.rank_failures import RankFailure
from mgpu_doctor.case.gpu import XidEvent
from mgpu_doctor.case.model import Outcome, Rank
from mgpu_doctor.findings import Evidence, Severity
from mgpu_doctor.rules.hardware.common import where
from mgpu_doctor.signatures.signature import Role, Signature
from mgpu_doctor.signatures.xid_codes import APPLICATION, signature_of

BEFORE, AFTER = 60.0, 10.0
"""Seconds before and after a rank's end in which an XID of its device belongs to it: a rank notices
an error at its next synchronization, and some XIDs tell of the end itself."""
WENT_ON = 10.0
"""Seconds after an XID at which a rank that still finishes steps was not stopped by it."""


@dataclass(frozen=True, slots=True)
class Xid:
    """All XIDs of one number on one device."""

    gpu: Gpu
    signature: Signature
    events: tuple[XidEvent, ...]
    falls: tuple[RankFailure, ...] = ()
    """Ranks on the device that ended by it, as far as time tells."""

    @property
    def number(self) -> int:
        return self.events[0].number

    @property
    def by_program(self) -> bool:
        return self.number in APPLICATION

    @property
    def meaning(self) -> str:
        at = self.gpu.device.bus_id or f"index {self.gpu.index}"
        return self._filled(self.signature.meaning, at)

    @property
    def fix(self) -> str:
        return self._filled(self.signature.fix, str(self.gpu.device.bus_id or self.gpu.index))

    @property
    def evidence(self) -> Evidence:
        times = f", {len(self.events)} times" if len(self.events) > 1 else ""
        return Evidence(
            f"XID that the driver reported{times}",
            self.number,
            "XID",
            source="kernel log" if all(one.logged for one in self.events) else "NVML events",
            where=where(self.gpu),
        )

    def _filled(self, text: str, pci: str) -> str:
        return text.replace("{pci}", pci).replace("{xid}", str(self.number))


def xids(measures: Measures, code: str) -> Iterable[Xid]:
    """Those that are evidence for a code, by device and number."""
    for gpu in measures.watched.gpus:
        for number in dict.fromkeys(event.number for event in gpu.xids):
            signature = signature_of(number)
            if signature is not None and signature.code == code:
                events = tuple(event for event in gpu.xids if event.number == number)
                yield Xid(gpu, signature, events, _falls(measures, gpu, events))


def severity_of(one: Xid, measures: Measures) -> Severity:
    """critical: a rank fell by it or stands since. Of a program's own fault the finding of the
    rank's end says more: so that is a warning at most, and info where nobody of the job fell."""
    symptom = one.signature.role is Role.SYMPTOM
    if one.by_program:
        return Severity.WARNING if one.falls else Severity.INFO
    if one.falls and not symptom:
        return Severity.CRITICAL
    grave = one.signature.severity == "critical" and not symptom
    return Severity.CRITICAL if grave and _stopped(one, measures) else Severity.WARNING


def _falls(measures: Measures, gpu: Gpu, events: tuple[XidEvent, ...]) -> tuple[RankFailure, ...]:
    case = measures.case
    if not gpu.ranks or case.job.outcome is Outcome.COMPLETED:
        return ()
    return tuple(
        fall
        for fall in find_first_failures(case)
        if fall.rank in gpu.ranks
        and any(_belongs(event.at, fall.at or case.job.ended) for event in events)
    )


def _belongs(at: float, fell: float | None) -> bool:
    return fell is None or fell - BEFORE <= at <= fell + AFTER


def _stopped(one: Xid, measures: Measures) -> bool:
    """Whether a rank on the device has finished no step since, in a job that is not over."""
    if measures.case.job.outcome not in (Outcome.RUNNING, Outcome.HUNG):
        return False
    since = one.events[-1].at
    if measures.case.observed < since + WENT_ON:
        return False
    ranks = [rank for rank in measures.case.ranks if rank.rank in one.gpu.ranks]
    return any(len(rank.steps) and _newest(rank) < since + WENT_ON for rank in ranks)


def _newest(rank: Rank) -> float:
    return float(rank.steps["end_ns"][-1]) * 1e-9 + rank.clock_offset
