"""A GPU that no longer answers."""

from __future__ import annotations

import re
from collections.abc import Iterable

from mgpu_doctor.analysis.machines.host_devices import Gpu
from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.analysis.postmortem.driver_xids import Xid
from mgpu_doctor.analysis.postmortem.log_verdict import GENERIC_CODES
from mgpu_doctor.analysis.postmortem.rank_failures import RankFailure
from mgpu_doctor.case.device_samples import Device
from mgpu_doctor.case.model import Outcome
from mgpu_doctor.findings import Evidence, Finding, Fix, Severity
from mgpu_doctor.rules.failures import failure_text
from mgpu_doctor.rules.failures.log_rules import log_detector
from mgpu_doctor.rules.gpu.gpu_findings import SURE, culprits, named, where
from mgpu_doctor.rules.gpu.gpu_use import PRETEND
from mgpu_doctor.rules.gpu.xid_evidence import (
    find_xids_of,
    make_xid_evidence,
    severity_of,
)
from mgpu_doctor.rules.rule import Limit, Limits, Rule

CODE = "gpu-lost"
_LOST = re.compile(r"\b(?:is lost|out of reach|reset|fallen off)\b", re.IGNORECASE)
FIX = Fix(
    "reboot-host",
    "Move the job off this host and reboot it",
    "Look for `NVRM: Xid` in `dmesg` first. `nvidia-smi --gpu-reset` rarely recovers a lost GPU. "
    "If it is lost again, check power, cables, seating, cooling and the PCIe slot, then have the "
    "GPU replaced.",
)


def _examine(measures: Measures, limits: Limits) -> Iterable[Finding]:
    reported = {xid.gpu.index: xid for xid in find_xids_of(measures, CODE)}
    for gpu in measures.watched.gpus:
        since, how = _since(gpu, int(limits["samples"]))
        xid = reported.get(gpu.index)
        if xid is not None and xid.gpu is not gpu:
            xid = None
        if since is None and xid is None:
            continue
        yield _finding(measures, gpu, since, how, xid)


def _finding(
    measures: Measures, gpu: Gpu, since: float | None, how: str, xid: Xid | None
) -> Finding:
    falls = xid.failures if xid is not None else ()
    falls = falls or _fallen(measures, gpu, since)
    severity = Severity.CRITICAL if falls else _severity(measures, gpu, since)
    if xid is not None and severity is not Severity.CRITICAL:
        severity = severity_of(xid)
    back = " and answers again" if since is None else ""
    evidence = [] if since is None else [_silence(gpu, since, how)]
    ended = bool(falls) and severity is Severity.CRITICAL
    return Finding(
        code=CODE,
        severity=severity,
        confidence=SURE if xid is None else 0.97,
        title=f"{named(gpu)} was lost{back}: the host could no longer reach it",
        cause=xid.meaning
        if xid is not None
        else f"The driver reports: {how}. The GPU fell off the bus, hangs, or was removed.",
        culprits=culprits(measures, (gpu,)),
        victims=_others(measures, gpu) if severity is Severity.CRITICAL else (),
        evidence=(
            *evidence,
            *((make_xid_evidence(xid),) if xid is not None else ()),
            *(piece for fall in falls for piece in failure_text.evidence_of(fall, measures.case)),
        ),
        fixes=(FIX,),
        replaces=tuple(sorted(GENERIC_CODES | {"gpu-xid"})) if ended else (),
    )


def _since(gpu: Gpu, least: int) -> tuple[float | None, str]:
    """When it stopped answering, and what the driver reports; None if it answers."""
    if gpu.last > gpu.series[-1][0]:
        unseen = gpu.last - gpu.series[-1][0]
        every = _every(gpu)
        if every is not None and unseen >= least * every:
            return gpu.series[-1][0], "it is no longer listed"
    silent = 0
    for _, device in reversed(gpu.series):
        if not is_lost(device):
            break
        silent += 1
    if silent < least:
        return None, ""
    return gpu.series[-silent][0], str(gpu.device.trouble)


def _every(gpu: Gpu) -> float | None:
    """Seconds between the samples of this GPU."""
    if len(gpu.series) < 2:
        return None
    return (gpu.series[-1][0] - gpu.series[0][0]) / (len(gpu.series) - 1)


def is_lost(device: Device) -> bool:
    """Whether the driver reports it lost and it answers no query."""
    answers = (device.utilization, device.memory_used, device.power_watts, device.temperature)
    silent = all(answer is None for answer in answers) and not device.pids
    return silent and bool(_LOST.search(device.trouble or ""))


def _fallen(measures: Measures, gpu: Gpu, since: float | None) -> tuple[RankFailure, ...]:
    """Ranks on the GPU that ended at about the time it was lost."""
    if since is None or measures.case.job.outcome is Outcome.COMPLETED:
        return ()
    return tuple(
        fall
        for fall in measures.postmortem.first
        if fall.rank in gpu.ranks and (fall.at is None or fall.at >= since - 60.0)
    )


def _severity(measures: Measures, gpu: Gpu, since: float | None) -> Severity:
    running = measures.case.job.outcome in (Outcome.RUNNING, Outcome.HUNG)
    blocks_job = running and bool(gpu.ranks) and since is not None
    return Severity.CRITICAL if blocks_job else Severity.WARNING


def _others(measures: Measures, gpu: Gpu) -> tuple[int, ...]:
    known = (rank.rank for rank in measures.case.ranks)
    return tuple(number for number in known if number is not None and number not in gpu.ranks)


def _silence(gpu: Gpu, since: float, how: str) -> Evidence:
    return Evidence(
        f"seconds without an answer ({how})", gpu.last - since, "s", 0, "NVML samples", where(gpu)
    )


RULES = (
    Rule(
        code=CODE,
        family="hardware",
        summary="A GPU fell off the bus or no longer answers.",
        measured="In the newest samples, NVML reports that the device is lost or needs a reset, "
        "answers no other query about it, or no longer lists it; or the driver reported XID 79.",
        thresholds="Critical while the job runs and a rank is on the device, or if that rank was "
        "the first to fail; otherwise a warning. The rank is known by UUID, pid or index.",
        fixes="Reboot the host; check power, cables, seating, cooling and the slot; replace it.",
        examine=_examine,
        alternatives=(log_detector(CODE),),
        limits=(
            Limit(
                "samples",
                2,
                "samples",
                "newest consecutive samples without an answer: a single failed call is not a loss.",
            ),
        ),
        unverified=PRETEND,
    ),
)
