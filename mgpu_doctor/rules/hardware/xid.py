"""XIDs: what the driver reports of a GPU with an error, and findings of ends that carry them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.analysis.postmortem.log_match_fit import GENERIC_CODES
from mgpu_doctor.findings import Evidence, Finding, Fix, Severity
from mgpu_doctor.rules.device.gpu import PRETEND
from mgpu_doctor.rules.failures import failure_text
from mgpu_doctor.rules.hardware.common import SURE, culprits, named
from mgpu_doctor.rules.hardware.xids import AFTER, BEFORE, Xid, severity_of, xids
from mgpu_doctor.rules.rule import Limits, Rule

CODE = "gpu-xid"


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


def _ends(one: Xid, measures: Measures) -> Iterable[Evidence]:
    return [piece for fall in one.falls for piece in failure_text.evidence_of(fall, measures.case)]


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
