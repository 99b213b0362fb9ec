"""Hangs in which every host waits for its device: the position of the devices shows the culprit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest

from mgpu_doctor.case.model import DevicePosition, Rank, State
from mgpu_doctor.diagnosis import diagnose
from mgpu_doctor.findings import Diagnosis, Severity
from mgpu_doctor.recording.box import STEP_DTYPE
from mgpu_doctor.recording.device_position import NoPosition
from tests.support import job_snapshots
from tests.support.diagnoses import facts
from tests.support.diagnoses import rank as summary
from tests.support.job_snapshots import (
    LOOP,
    ProcessState,
    SnapshotSeries,
    blocked_process,
    collective,
    snapshot_series,
)

LAST = job_snapshots.START + 2.0
"""When the newest snapshot was taken."""
ITEM = [ProcessState(LOOP)]
"""Waits for the device in `item()`, which leaves no frame, and sleeps."""
SPINS = job_snapshots.busy_process(LOOP, 3, step=1.0, active=True, syscall=None)
"""The same, as CUDA waits by default."""
DEVICE = [ProcessState((*LOOP, "synchronize torch/cuda/__init__.py:800"))]


def at(phase: str, marks: int, *, turn: int = 40, seconds: float = 40.0) -> DevicePosition:
    """A device that has been in this phase for so many seconds, with more work queued."""
    return DevicePosition(turn, turn, marks, phase, True, LAST - seconds, LAST - 0.5)


HUNG = {0: at("wait", 5), 1: at("forward", 2), 2: at("wait", 5)}
"""Rank 1 does not reach the collective in which the others wait."""


def boxed(number: int, position: DevicePosition | NoPosition) -> Rank:
    known = facts(summary(number, state=State.RUNNING, exit_code=None))
    steps = np.empty(0, STEP_DTYPE)
    return replace(known, pid=1000 + number, steps=steps, device_position=position)


def examined(
    positions: Mapping[int, DevicePosition | NoPosition], job: SnapshotSeries | None = None
) -> Diagnosis:
    job = job or snapshot_series({}, ranks=len(positions), others=ITEM)
    ranks = [boxed(number, position) for number, position in positions.items()]
    return diagnose(job_snapshots.case(job.snapshots(), ranks))


@pytest.mark.parametrize("hosts", [ITEM, SPINS, DEVICE])
def test_the_rank_whose_device_does_not_reach_the_collective_is_named(
    hosts: Sequence[ProcessState],
) -> None:
    (finding,) = examined(HUNG, snapshot_series({}, ranks=3, others=hosts)).findings
    assert (finding.code, finding.severity) == ("hang-rank-behind", Severity.CRITICAL)
    assert [(culprit.rank, culprit.pid) for culprit in finding.culprits] == [(1, 1001)]
    assert (finding.victims, finding.since_step) == ((0, 2), 40)
    rows = {row.measure: row.value for row in finding.evidence if row.source == "device events"}
    assert rows == {
        "device of rank 1": "still in the forward pass of step 40",
        "devices of ranks 0 and 2": "waiting for other ranks in step 40",
        "time without progress on any device": 39.5,
    }
    assert finding.fixes[0].id == "see-the-kernel"


def test_hosts_may_be_steps_ahead_and_at_different_lines() -> None:
    """Full queues stop them wherever they happen to be."""
    ahead = {0: at("wait", 5, turn=41), 1: at("optimizer", 7), 2: at("wait", 5, turn=41)}
    job = snapshot_series({1: blocked_process("step train.py:77")}, ranks=3, others=ITEM)
    (finding,) = examined(ahead, job).findings
    assert (finding.code, finding.culprits[0].rank) == ("hang-rank-behind", 1)


UNDECIDED: dict[str, Mapping[int, DevicePosition | NoPosition]] = {
    "all wait": dict.fromkeys(range(3), at("wait", 5)),
    "all work": dict.fromkeys(range(3), at("forward", 2)),
    "two work": {**HUNG, 2: at("forward", 2)},
    "ahead of the others": {**HUNG, 1: at("forward", 2, turn=41)},
    "evaluates": {**HUNG, 1: at("evaluation", 2)},
    "saves": {**HUNG, 1: at("checkpoint", 2)},
    "nothing queued": {**HUNG, 1: replace(at("forward", 2), has_more=False)},
    "one unknown": {**HUNG, 2: NoPosition.NOT_TIMED},
    "not long": {**HUNG, 1: at("forward", 2, seconds=20.0)},
    "a device that moves": {**HUNG, 2: at("wait", 5, seconds=3.0)},
    "an old reading": {**HUNG, 1: replace(HUNG[1], seen=LAST - 30.0)},
}


@pytest.mark.parametrize("how", UNDECIDED)
def test_where_the_devices_do_not_decide_nobody_is_named(how: str) -> None:
    assert not examined(UNDECIDED[how]).findings
    waits = snapshot_series({}, ranks=3, others=DEVICE)
    assert not examined(UNDECIDED[how], waits).findings


def test_a_rank_that_was_not_seen_may_be_the_culprit() -> None:
    job = snapshot_series({}, ranks=3, others=ITEM)
    job.world_size = 4
    assert not examined(HUNG, job).findings


def test_stacks_that_show_the_culprit_decide() -> None:
    """A lock that Python code waits for: what the devices do follows from it."""
    locked = blocked_process("take util.py:31", "acquire threading.py:9")
    (finding,) = examined(HUNG, snapshot_series({2: locked}, ranks=3, others=WAITING)).findings
    assert [culprit.rank for culprit in finding.culprits] == [2]


WAITING = [ProcessState(collective())]


def test_the_known_gap_says_what_the_devices_show() -> None:
    reasons = {}
    for how in ("all wait", "one unknown"):
        job = snapshot_series({}, ranks=3, others=DEVICE)
        gaps = examined(UNDECIDED[how], job).unexamined
        (reasons[how],) = (gap.reason for gap in gaps if gap.probe == "which rank blocks the job")
    assert reasons["all wait"].endswith("their devices are all equally far")
    assert reasons["one unknown"].endswith(f"unknown ({NoPosition.NOT_TIMED.value})")
