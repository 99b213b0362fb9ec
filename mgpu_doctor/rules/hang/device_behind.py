"""All hosts wait for their devices, and one device has not reached the collective of the others."""

from __future__ import annotations

from collections.abc import Iterable

from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.analysis.postmortem import dead_rank_stall as stall
from mgpu_doctor.analysis.stacks.device_positions import seconds_unchanged
from mgpu_doctor.analysis.stacks.hang_analysis import Hang, Kind
from mgpu_doctor.analysis.stacks.thread_states import ThreadState
from mgpu_doctor.case.model import Case, DevicePosition
from mgpu_doctor.findings import Evidence, Finding, Fix, Severity
from mgpu_doctor.formatting import format_ranks
from mgpu_doctor.rules.advice import is_alive, next_time
from mgpu_doctor.rules.hang.blocked_rank import source_line
from mgpu_doctor.rules.hang.stack_evidence import (
    LONG_WITHOUT_STEPS,
    MOST_ROWS,
    STACKS,
    find_culprit,
    hang_of_kind,
    long_seconds,
    name_process,
    name_ranks,
    rank_numbers,
)
from mgpu_doctor.rules.rule import Detector, Limits

CONFIDENCE = 0.8
DEVICES = "device events"
_WORK = {
    "forward": "the forward pass",
    "backward": "the backward pass",
    "optimizer": "the optimizer step",
    "transfer": "a transfer",
    "input": "the work around a batch",
    "other": "the work between the phases",
}


def _find_device_behind(measures: Measures, _: Limits) -> Iterable[Finding]:
    hang = hang_of_kind(measures, Kind.DEVICE_BEHIND)
    if hang is None:
        return
    seconds = seconds_unchanged(hang.positions.values())
    if seconds < long_seconds(measures.case.ranks):
        return
    culprit = hang.culprits[0].state
    position = hang.positions[culprit.pid]
    name, work = name_process(culprit), f"{_WORK[position.phase]} of step {position.step}"
    others = format_ranks(rank_numbers(hang.waiting))
    is_one = len(hang.waiting) == 1
    yield Finding(
        code="hang-rank-behind",
        severity=Severity.CRITICAL,
        confidence=CONFIDENCE,
        title=f"The device of {name} does not finish {work}; {others} "
        f"{'waits' if is_one else 'wait'} for it",
        cause="Every host waits for its own device, so the stacks do not show which rank is "
        f"behind. The {'device of' if is_one else 'devices of'} {others} "
        f"{'has' if is_one else 'have'} reached a collective and {'waits' if is_one else 'wait'} "
        f"there; the device of {name} has not reached it. A kernel that does not end, a stream "
        "that waits for something that never happens, or a failed GPU keeps it from there.",
        culprits=(find_culprit(measures, culprit),),
        victims=rank_numbers(hang.waiting),
        evidence=(
            Evidence(f"device of {name}", f"still in {work}", "text", None, DEVICES),
            *_other_devices(hang),
            *_hosts(hang),
            Evidence("time without progress on any device", round(seconds, 1), "s", None, DEVICES),
        ),
        since_step=position.step,
        fixes=(_fix(measures.case, culprit.host_pid),),
    )


def _other_devices(hang: Hang) -> Iterable[Evidence]:
    """Where the devices of the waiting ranks are, one row per step."""
    steps: dict[int, list[int]] = {}
    for state in hang.waiting:
        position: DevicePosition = hang.positions[state.pid]
        if state.rank is not None:
            steps.setdefault(position.step, []).append(state.rank)
    for step, ranks in steps.items():
        where = f"waiting for other ranks in step {step}"
        measure = f"{'device' if len(ranks) == 1 else 'devices'} of {format_ranks(ranks)}"
        yield Evidence(measure, where, "text", None, DEVICES)


def _hosts(hang: Hang) -> Iterable[Evidence]:
    """The lines at which the hosts wait, one row per line."""
    lines: dict[str | None, list[ThreadState]] = {}
    for state in (hang.culprits[0].state, *hang.waiting):
        lines.setdefault(source_line(state), []).append(state)
    for line, states in list(lines.items())[:MOST_ROWS]:
        verb = "waits" if len(states) == 1 else "wait"
        what = f"{name_ranks(states)} {verb} in this call"
        yield Evidence("hosts", what, "text", None, STACKS, line)


def _fix(case: Case, pid: int) -> Fix:
    named = pid if is_alive(case, pid) else "PID"
    return Fix(
        "see-the-kernel",
        "Find out what this device is doing",
        "`dmesg -T | grep -i xid` shows whether the GPU failed, `nvidia-smi` whether it is busy. "
        f"{next_time(case)}, `cuda-gdb -p {named}` with `info cuda kernels` names the kernel; it "
        "pauses the process. Suspect custom and Triton kernels, whose loops may never end for this "
        "rank's data. If the job hangs on the same GPU each time, run `mgpu-doctor preflight` on "
        "that host.",
    )


DEVICE_BEHIND = Detector(
    _find_device_behind,
    measured="If every host waits for its own device, stacks do not show which rank is behind, but "
    "the devices may: under `mgpu-doctor run` each rank notes the newest mark of a step that its "
    "device has passed. If all devices but one wait for other ranks, and that one is still in work "
    "before the collective in which they wait, its rank is named. No device may have passed a mark "
    f"for {stall.LEAST_SECONDS:.0f} s and {stall.LEAST_STEPS:.0f} median steps, or for "
    f"{LONG_WITHOUT_STEPS:.0f} s if no steps were recorded. This needs every rank, in a step that "
    "the devices time. It has not been seen on a GPU.",
    needs=("hang",),
    unless=("divergence",),
)
"""The detector by devices of the rule `hang-rank-behind`."""
