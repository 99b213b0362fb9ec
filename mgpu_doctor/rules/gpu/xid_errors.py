"""XIDs that the driver reported, each as its own finding."""

from __future__ import annotations

from collections.abc import Iterable

from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.analysis.postmortem.driver_xids import AFTER, BEFORE, Xid
from mgpu_doctor.analysis.postmortem.log_verdict import GENERIC_CODES
from mgpu_doctor.findings import Evidence, Finding, Fix, Severity
from mgpu_doctor.rules.failures import failure_text
from mgpu_doctor.rules.failures.log_rules import log_detector
from mgpu_doctor.rules.gpu.gpu_findings import SURE, culprits, named
from mgpu_doctor.rules.gpu.gpu_use import PRETEND
from mgpu_doctor.rules.gpu.xid_evidence import CODE, find_xids_of, make_xid_evidence, severity_of
from mgpu_doctor.rules.rule import Limits, Rule


def _examine(measures: Measures, _: Limits) -> Iterable[Finding]:
    for xid in find_xids_of(measures, CODE):
        severity = severity_of(xid)
        ended = severity is Severity.CRITICAL and bool(xid.failures)
        yield Finding(
            code=CODE,
            severity=severity,
            confidence=round(SURE * xid.signature.weight, 3),
            title=f"{named(xid.gpu)}: the driver reported XID {xid.number}"
            + (", and the rank ended" if ended else ""),
            cause=xid.meaning,
            culprits=culprits(measures, (xid.gpu,)),
            evidence=(make_xid_evidence(xid), *_ends(xid, measures)),
            fixes=(Fix(xid.signature.id, "Follow the advice for this XID", xid.fix),),
            replaces=tuple(sorted(GENERIC_CODES)) if ended else (),
        )


def _ends(xid: Xid, measures: Measures) -> Iterable[Evidence]:
    return [
        piece
        for failure in xid.failures
        for piece in failure_text.evidence_of(failure, measures.case)
    ]


RULES = (
    Rule(
        code=CODE,
        family="hardware",
        summary="The driver reported an XID for a GPU: a numbered error of a program, the driver "
        "or the hardware.",
        measured="NVML reports the driver's XID events while the job runs, and the driver's lines "
        "in the kernel log are read if permitted. Both are assigned to the rank on the device by "
        "PCI address, UUID, pid or index, and each counts once. XIDs that identify the damage are "
        "reported as `gpu-lost` (79), `gpu-ecc` (48, 63, 64, 94, 95) and `nvlink-down` (74). 13, "
        "31, 43 and 45 are usually the program's own fault: if one ended a rank, it is evidence of "
        "the finding about that failure.",
        thresholds=f"An XID is linked to a rank's failure up to {BEFORE:.0f} s later or "
        f"{AFTER:.0f} s earlier. Critical if the rank failed or has finished no step since; info "
        "for 13, 31, 43 and 45 if no rank failed; otherwise a warning. Meaning of the numbers: "
        "NVIDIA's XID catalogue, https://docs.nvidia.com/deploy/xid-errors/.",
        fixes="By the number: find the kernel (13, 31), look at earlier errors (43, 45), reset "
        "the GPU or update the driver (119, 120), reboot (61, 62).",
        examine=_examine,
        alternatives=(log_detector(CODE),),
        unverified=PRETEND,
    ),
)
