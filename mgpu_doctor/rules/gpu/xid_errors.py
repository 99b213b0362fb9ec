"""XIDs, the errors of a GPU that its driver reports: whom they hit, and who ended by one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from mgpu_doctor.analysis.machines.host_devices import Gpu
from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.analysis.postmortem.log_match_fit import GENERIC_CODES
from mgpu_doctor.analysis.postmortem.rank_failures import RankFailure
from mgpu_doctor.case.device_samples import XidEvent
from mgpu_doctor.case.model import Outcome, Rank
from mgpu_doctor.findings import Evidence, Finding, Fix, Severity
from mgpu_doctor.rules.failures import failure_text
from mgpu_doctor.rules.gpu.gpu_findings import SURE, culprits, named, where
from mgpu_doctor.rules.gpu.gpu_use import PRETEND
from mgpu_doctor.rules.rule import Limits, Rule
from mgpu_doctor.signatures.signature import Role, Signature
from mgpu_doctor.signatures.xid_codes import APPLICATION, signature_of

CODE = "gpu-xid"
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
            source="kernel log" if all(event.logged for event in self.events) else "NVML events",
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


def severity_of(xid: Xid, measures: Measures) -> Severity:
    """critical: a rank fell by it or stands since. Of a program's own fault the finding of the
    rank's end says more: so that is a warning at most, and info where nobody of the job fell."""
    symptom = xid.signature.role is Role.SYMPTOM
    if xid.by_program:
        return Severity.WARNING if xid.falls else Severity.INFO
    if xid.falls and not symptom:
        return Severity.CRITICAL
    grave = xid.signature.severity == "critical" and not symptom
    return Severity.CRITICAL if grave and _stopped(xid, measures) else Severity.WARNING


def _falls(measures: Measures, gpu: Gpu, events: tuple[XidEvent, ...]) -> tuple[RankFailure, ...]:
    case = measures.case
    if not gpu.ranks or case.job.outcome is Outcome.COMPLETED:
        return ()
    return tuple(
        fall
        for fall in measures.postmortem.first
        if fall.rank in gpu.ranks
        and any(_belongs(event.at, fall.at or case.job.ended) for event in events)
    )


def _belongs(at: float, fell: float | None) -> bool:
    return fell is None or fell - BEFORE <= at <= fell + AFTER


def _stopped(xid: Xid, measures: Measures) -> bool:
    """Whether a rank on the device has finished no step since, in a job that is not over."""
    if measures.case.job.outcome not in (Outcome.RUNNING, Outcome.HUNG):
        return False
    since = xid.events[-1].at
    if measures.case.observed < since + WENT_ON:
        return False
    ranks = [rank for rank in measures.case.ranks if rank.rank in xid.gpu.ranks]
    return any(len(rank.steps) and _newest(rank) < since + WENT_ON for rank in ranks)


def _newest(rank: Rank) -> float:
    return float(rank.steps["end_ns"][-1]) * 1e-9 + rank.clock_offset


def _examine(measures: Measures, _: Limits) -> Iterable[Finding]:
    for one in xids(measures, CODE):
        severity = severity_of(one, measures)
        ended = severity is Severity.CRITICAL and bool(one.falls)
        yield Finding(
            code=CODE,
            severity=severity,
            confidence=round(SURE * one.signature.weight, 3),
            title=f"{named(one.gpu)}: the driver reported XID {one.number}"
            + (", and the rank ended" if ended else ""),
            cause=one.meaning,
            culprits=culprits(measures, (one.gpu,)),
            evidence=(one.evidence, *_ends(one, measures)),
            fixes=(Fix(one.signature.id, "Do what this XID asks for", one.fix),),
            replaces=tuple(sorted(GENERIC_CODES)) if ended else (),
        )


def _ends(xid: Xid, measures: Measures) -> Iterable[Evidence]:
    return [piece for fall in xid.falls for piece in failure_text.evidence_of(fall, measures.case)]


def add_xids(findings: list[Finding], measures: Measures) -> list[Finding]:
    """Findings of how ranks ended, with the XIDs that their GPUs had just then, if these are ones
    that a program brings about: the end itself says more about their cause."""
    if not any(gpu.xids for gpu in measures.watched.gpus):
        return findings
    return [_with(finding, measures) for finding in findings]


def _with(found: Finding, measures: Measures) -> Finding:
    accused = {culprit.rank for culprit in found.culprits}
    own = [
        one
        for one in xids(measures, CODE)
        if one.by_program and any(fall.rank in accused for fall in one.falls)
    ]
    if found.severity is not Severity.CRITICAL or not own:
        return found
    return replace(
        found,
        cause=" ".join([found.cause, *(one.meaning for one in own)]),
        evidence=(*found.evidence, *(one.evidence for one in own)),
        replaces=(*found.replaces, CODE),
    )


RULES = (
    Rule(
        code=CODE,
        family="hardware",
        summary="The driver reported an XID of a GPU: an error of a program, the driver or the "
        "hardware, by its number.",
        measured="The driver's XID events are listened to through NVML while the job runs, and its "
        "lines in the kernel's log are read where that may be read; both are tied to the rank on "
        "the device by PCI address, UUID, pid or index, and each counts once. "
        "Those that say of what kind the damage is are told as `gpu-lost` (79), `gpu-ecc` (48, "
        "63, 64, 94, 95) and `nvlink-down` (74). 13, 31, 43 and 45 are usually a program's own "
        "doing: where a rank ended by one, the finding of its end carries it.",
        thresholds=f"An XID belongs to a rank's end that comes up to {BEFORE:.0f} s later or "
        f"{AFTER:.0f} s earlier. It is critical where the rank ended or has finished no step "
        "since; of 13, 31, 43 and 45 info where no rank ended; else a warning. What numbers mean: "
        "NVIDIA's XID catalogue, https://docs.nvidia.com/deploy/xid-errors/.",
        fixes="By the number: find the kernel (13, 31), look at what came before (43, 45), reset "
        "the GPU or update the driver (119, 120), reboot (61, 62).",
        examine=_examine,
        unverified=PRETEND,
    ),
)
