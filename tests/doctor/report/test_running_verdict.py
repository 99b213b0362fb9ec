"""A running job with stacks but no steps is called running only where its stacks change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from mgpu_doctor.case.model import Gap, Outcome, Unexamined
from mgpu_doctor.diagnosis import diagnose
from mgpu_doctor.findings import Diagnosis
from mgpu_doctor.recording.box import STEP_DTYPE
from mgpu_doctor.report.verdict import Tone, Verdict, verdict
from tests.support import diagnoses
from tests.support.job_snapshots import FETCHING, LOADING, LOOP, ProcessState, SnapshotSeries, case
from tests.support.synthetic import Synthetic, make_rank, synthetic_case

ASLEEP = [ProcessState((*LOOP, "sleep_for_ever train.py:70"))]
COMPUTES = [
    ProcessState((*LOOP, "spin train.py:70"), gil=True, cpu=cpu) for cpu in (10.0, 11.0, 12.0)
]
MOVES = [ProcessState((*LOOP, f"work train.py:{line}"), cpu=line) for line in (70, 71, 72)]


def diagnosed(*ranks: Sequence[ProcessState], count: int = 3) -> Diagnosis:
    scene = SnapshotSeries(dict(enumerate(ranks)), count=count)
    no_steps = np.zeros(0, STEP_DTYPE)
    known = [make_rank(number, no_steps) for number in range(len(ranks))]
    return diagnose(case(scene.snapshots(), known))


@pytest.mark.parametrize(("states", "seconds"), [(ASLEEP, 2.0), (COMPUTES, 2.0)])
def test_a_process_at_one_place_is_not_called_running(
    states: Sequence[ProcessState], seconds: float
) -> None:
    diagnosis = diagnosed(states)
    assert verdict(diagnosis).tone is Tone.UNKNOWN
    assert diagnosis.ranks[0].still_seconds == seconds


def test_a_process_that_waits_for_its_loaders_worker_is_not_said_to_be_at_its_line() -> None:
    """Of one process no other waits, so no finding names the worker: the verdict must."""
    asleep = [ProcessState((*FETCHING, "get_item data.py:3"), syscall="clock_nanosleep")]
    scene = SnapshotSeries({0: [ProcessState(LOADING, syscall="poll")]}, {0: asleep})
    no_steps = np.zeros(0, STEP_DTYPE)
    diagnosis = diagnose(case(scene.snapshots(), [make_rank(0, no_steps)]))
    assert diagnosis.ranks[0].where == "get_item() data.py:3 (data-loader worker 5000)"
    assert "get_item() data.py:3 (data-loader worker 5000) for 2" in verdict(diagnosis).sentence


def test_a_process_seen_once_is_not_called_running() -> None:
    diagnosis = diagnosed(ASLEEP, count=1)
    assert verdict(diagnosis).tone is Tone.UNKNOWN
    assert diagnosis.ranks[0].still_seconds is None


def test_one_moving_rank_shows_that_the_job_moves() -> None:
    diagnosis = diagnosed(COMPUTES, MOVES)
    assert verdict(diagnosis).tone is Tone.GOOD
    assert [summary.still_seconds for summary in diagnosis.ranks] == [2.0, None]


def test_a_blocked_job_with_steps_is_not_called_good() -> None:
    healthy = diagnoses.healthy(Outcome.RUNNING)
    assert verdict(healthy).tone is Tone.GOOD
    gap = Unexamined(
        "which rank blocks the job", "the stacks do not show it", "", Gap.BLOCKING_RANK
    )
    blocked = replace(healthy, unexamined=(*healthy.unexamined, gap))
    assert verdict(blocked).tone is Tone.UNKNOWN


@pytest.mark.parametrize(
    ("ranks", "steps", "waits_for"),
    [
        (0, 0, "no rank has started to train, 26.4 s after the start"),
        (4, 0, "4 ranks seen, and no step has ended, 26.4 s after the start"),
        (1, 0, "1 rank seen, and no step has ended, 26.4 s after the start"),
        (4, 4, "4 of the 20 steps that a judgement needs"),
        (1, 19, "19 of the 20 steps that a judgement needs"),
    ],
)
def test_a_job_that_just_began_is_being_measured(ranks: int, steps: int, waits_for: str) -> None:
    last = steps - 1 if steps else None
    phases = diagnoses.HEALTHY_STEP if steps else {}
    seen = [diagnoses.rank(number, phases=phases, last_step=last) for number in range(ranks)]
    begun = diagnoses.diagnosis(seen, outcome=Outcome.RUNNING)
    assert verdict(begun) == Verdict(Tone.UNKNOWN, f"measuring…: {waits_for}")
    over = diagnoses.diagnosis(seen, outcome=Outcome.COMPLETED)
    assert "measuring" not in verdict(over).sentence


def test_ranks_that_cannot_be_compared_yet_are_being_measured() -> None:
    """By what the analysis says of the steps of a job, from the first to enough."""
    sentences = {}
    for count in (5, 12, 21, 60):
        case_ = synthetic_case(Synthetic(steps=count))
        diagnosis = diagnose(replace(case_, job=replace(case_.job, outcome=Outcome.RUNNING)))
        sentences[count] = verdict(diagnosis).sentence
    assert sentences[5].startswith("measuring…: 5 of the 20 steps")
    assert sentences[12].startswith("measuring…: 12 of the 20 steps")
    assert "20 decide at the earliest" in sentences[21]
    assert sentences[60] == "nothing wrong so far"


def test_a_job_without_a_probe_waits_for_no_step() -> None:
    gap = Unexamined("in-process probe", "not loaded", "", Gap.PROCESS_PROBE)
    seen = [diagnoses.rank(0, phases={}, last_step=None)]
    bare = diagnoses.diagnosis(seen, outcome=Outcome.RUNNING, unexamined=[gap])
    assert "measuring" not in verdict(bare).sentence
