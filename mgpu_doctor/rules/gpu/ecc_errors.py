"""GPU memory errors, and row repairs that are pending or failed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from mgpu_doctor.analysis.machines.host_devices import Gpu
from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.analysis.postmortem.driver_xids import Xid
from mgpu_doctor.analysis.postmortem.log_verdict import GENERIC_CODES
from mgpu_doctor.findings import Evidence, Finding, Fix, Severity
from mgpu_doctor.formatting import format_count, format_seconds
from mgpu_doctor.rules.failures import failure_text
from mgpu_doctor.rules.failures.log_rules import log_detector
from mgpu_doctor.rules.gpu.gpu_findings import (
    SURE,
    culprits,
    lasting,
    list_readings,
    named,
    risen,
    where,
)
from mgpu_doctor.rules.gpu.gpu_use import PRETEND
from mgpu_doctor.rules.gpu.xid_evidence import (
    find_xids_of,
    make_xid_evidence,
    severity_of,
)
from mgpu_doctor.rules.rule import Limit, Limits, Rule

CODE = "gpu-ecc"
SOURCE = "NVML ECC counters"


@dataclass(frozen=True, slots=True)
class _State:
    uncorrected: int
    """Since the driver was loaded."""
    corrected: int
    """While it was watched."""
    seconds: float
    pending: bool
    failed: bool
    xids: tuple[Xid, ...] = ()

    @property
    def bad(self) -> bool:
        return bool(self.uncorrected or self.pending or self.failed or self.xids)


def _examine(measures: Measures, limits: Limits) -> Iterable[Finding]:
    known = find_xids_of(measures, CODE)
    for gpu in measures.watched.gpus:
        state = _state(gpu, tuple(xid for xid in known if xid.gpu is gpu))
        if state.bad:
            yield _defect(measures, gpu, state)
        elif state.corrected >= limits["corrected"]:
            yield _corrected(measures, gpu, state, limits)


def _state(gpu: Gpu, own: tuple[Xid, ...]) -> _State:
    corrected, seconds = risen(list_readings(gpu, lambda d: d.ecc.corrected if d.ecc else None))
    return _State(
        uncorrected=lasting(list_readings(gpu, lambda d: d.ecc.uncorrected if d.ecc else None))
        or 0,
        corrected=corrected,
        seconds=seconds,
        pending=bool(lasting(list_readings(gpu, lambda d: d.ecc.pending if d.ecc else None))),
        failed=bool(lasting(list_readings(gpu, lambda d: d.ecc.failed if d.ecc else None))),
        xids=own,
    )


def _defect(measures: Measures, gpu: Gpu, state: _State) -> Finding:
    parts = []
    if state.failed:
        parts.append("a bad row could not be replaced")
    if state.uncorrected:
        parts.append(f"{format_count(state.uncorrected, 'error')} that ECC could not correct")
    if state.pending:
        parts.append("the replacement of a bad row is pending until a reset")
    if state.xids and not parts:
        parts.append(f"XID {' and '.join(str(xid.number) for xid in state.xids)}")
    severities = [severity_of(xid) for xid in state.xids]
    critical = Severity.CRITICAL in severities
    falls = tuple(dict.fromkeys(fall for xid in state.xids for fall in xid.failures))
    ended = critical and bool(falls)
    return Finding(
        code=CODE,
        severity=Severity.CRITICAL if critical else Severity.WARNING,
        confidence=SURE,
        title=f"The memory of {named(gpu)} has errors: {', '.join(parts)}",
        cause=" ".join(xid.meaning for xid in state.xids)
        or "The memory itself is defective; no program is at fault. Results computed from an "
        "uncorrectable value are lost, and the driver ends the process that used it.",
        culprits=culprits(measures, (gpu,)),
        evidence=(
            *_evidence(gpu, state),
            *(make_xid_evidence(xid) for xid in state.xids),
            *(piece for fall in falls for piece in failure_text.evidence_of(fall, measures.case)),
        ),
        fixes=(_fix(gpu, state),),
        replaces=tuple(sorted(GENERIC_CODES)) if ended else (),
    )


def _corrected(measures: Measures, gpu: Gpu, state: _State, limits: Limits) -> Finding:
    return Finding(
        code=CODE,
        severity=Severity.INFO,
        confidence=SURE,
        title=f"The memory of {named(gpu)} had {state.corrected} errors, all corrected, in "
        f"{format_seconds(state.seconds)}",
        cause="ECC corrected all of them, so no data was lost. Many corrected errors in a short "
        "time can precede errors that it cannot correct.",
        culprits=culprits(measures, (gpu,)),
        evidence=(
            Evidence(
                "corrected memory errors while it was watched",
                state.corrected,
                "errors",
                limits["corrected"],
                SOURCE,
                where(gpu),
            ),
        ),
        fixes=(
            Fix(
                "watch-ecc",
                "Monitor the error count",
                f"nvidia-smi -q -d ECC,ROW_REMAPPER -i {gpu.index}; no action is needed as long as "
                "all are corrected.",
            ),
        ),
    )


def _evidence(gpu: Gpu, state: _State) -> Iterable[Evidence]:
    at = where(gpu)
    if state.uncorrected:
        yield Evidence(
            "uncorrected memory errors since the driver was loaded",
            state.uncorrected,
            "errors",
            0,
            SOURCE,
            at,
        )
    ecc = gpu.device.ecc
    if ecc is not None and ecc.remapped:
        yield Evidence("rows or pages replaced so far", ecc.remapped, "rows", 0, SOURCE, at)
    if state.pending:
        yield Evidence("a replacement is pending until a reset", "yes", "flag", "no", SOURCE, at)
    if state.failed:
        yield Evidence("a replacement failed", "yes", "flag", "no", SOURCE, at)


def _fix(gpu: Gpu, state: _State) -> Fix:
    show_state = f"`nvidia-smi -q -d ECC,ROW_REMAPPER -i {gpu.index}` shows the state"
    if state.failed or any(xid.number == 64 for xid in state.xids):
        return Fix(
            "replace-gpu",
            f"Take GPU {gpu.index} out of service and have it replaced",
            f"{show_state}; return a GPU without spare rows to the vendor (RMA). Until then "
            "remove it from CUDA_VISIBLE_DEVICES.",
        )
    return Fix(
        "reset-gpu",
        f"Move the job off GPU {gpu.index} and reset it",
        f"As root, with no process on it: `nvidia-smi --gpu-reset -i {gpu.index}` (all GPUs of the "
        f"host if they are connected by NVSwitches), or reboot. {show_state}. Restart from a "
        "checkpoint older than the error; if errors return, have the GPU replaced.",
    )


RULES = (
    Rule(
        code=CODE,
        family="hardware",
        summary="A GPU's memory has errors that could not be corrected, or the repair of a bad row "
        "is pending or failed.",
        measured="NVML's ECC counters since the driver was loaded, remapped rows (retired pages "
        "before Ampere), and XIDs 48, 63, 64, 94 and 95, assigned to the rank on the device.",
        thresholds="Any uncorrected error since the driver was loaded, a pending or a failed "
        "replacement, in the two newest readings. Corrected errors and earlier replacements are "
        "not defects. Critical if an XID ended a rank, or if no step has finished since.",
        fixes="Reset the GPU (`nvidia-smi --gpu-reset`), have it replaced if the replacement of "
        "rows failed or errors return; start from a checkpoint before the error.",
        examine=_examine,
        alternatives=(log_detector(CODE),),
        limits=(
            Limit(
                "corrected",
                100,
                "errors",
                "corrected errors while it is watched (two minutes of a running job) from which "
                "they are reported; NVIDIA gives no number.",
            ),
        ),
        unverified=PRETEND,
    ),
)
