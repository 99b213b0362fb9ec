"""XIDs as evidence: their severity, and what they add to the finding of a rank's failure."""

from __future__ import annotations

from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.analysis.postmortem.driver_xids import Xid
from mgpu_doctor.findings import Evidence, Finding, Severity
from mgpu_doctor.rules.gpu.gpu_findings import where
from mgpu_doctor.rules.rule import Addition, Detector
from mgpu_doctor.signatures.signature import Role

CODE = "gpu-xid"


def find_xids_of(measures: Measures, code: str) -> tuple[Xid, ...]:
    """The XIDs that are evidence for a code, by device and number."""
    return tuple(xid for xid in measures.xids if xid.signature.code == code)


def make_xid_evidence(xid: Xid) -> Evidence:
    """Evidence with the XID's number, count and reporter."""
    times = f", {len(xid.events)} times" if len(xid.events) > 1 else ""
    return Evidence(
        f"XID that the driver reported{times}",
        xid.number,
        "XID",
        source="kernel log" if all(event.logged for event in xid.events) else "NVML events",
        where=where(xid.gpu),
    )


def severity_of(xid: Xid) -> Severity:
    """critical: it ended a rank, or the rank has finished no step since. For a program's own fault,
    the finding of the failure says more: then a warning at most, and info if no rank failed."""
    symptom = xid.signature.role is Role.SYMPTOM
    if xid.by_program:
        return Severity.WARNING if xid.failures else Severity.INFO
    if xid.failures and not symptom:
        return Severity.CRITICAL
    grave = xid.signature.severity == "critical" and not symptom
    return Severity.CRITICAL if grave and xid.stops_rank else Severity.WARNING


def _add_xids(finding: Finding, measures: Measures) -> Addition | None:
    """The XIDs of the culprits' GPUs at the time of the failure, if programs cause such XIDs: the
    finding of the failure says more about their cause."""
    accused = {culprit.rank for culprit in finding.culprits}
    own = [
        xid
        for xid in find_xids_of(measures, CODE)
        if xid.by_program and any(failure.rank in accused for failure in xid.failures)
    ]
    if finding.severity is not Severity.CRITICAL or not own:
        return None
    return Addition(
        cause=" ".join(xid.meaning for xid in own),
        evidence=tuple(make_xid_evidence(xid) for xid in own),
        replaces=(CODE,),
    )


XIDS_OF_ENDS = Detector(None, add=_add_xids)
"""Adds XIDs to findings about how a rank ended."""
