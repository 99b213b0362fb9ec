"""Real jobs with steps of a fraction of a millisecond, in which hooks rest between timed steps."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from mgpu_probes.inprocess import layout

from mgpu_doctor.case.device_times import timed
from mgpu_doctor.case.recording_case import load_recording
from mgpu_doctor.diagnosis import diagnose
from tests.support.impatient_doctor import IMPATIENT_DOCTOR
from tests.support.jobs import run, torchrun
from tests.support.jobs_in_turn import job
from tests.support.observed_jobs import Observed, list_warnings, plan, printed_by

pytestmark = pytest.mark.slow

STEPS, FIRST = 3000, 200
SLOW = job(
    "short_steps",
    *("--fault", "forward", "--ms", "1", "--burn", "--rank", "1", "--steps", str(STEPS)),
)
LONG = job("short_steps", "--steps", str(FIRST + 840), "--long-from", str(FIRST + 801))
HEALTHY = {ranks: job("short_steps", "--steps", str(STEPS), ranks=ranks) for ranks in (1, 2)}
plan(SLOW, LONG, *HEALTHY.values())


@pytest.mark.parametrize("ranks", HEALTHY)
def test_all_steps_are_counted_few_are_timed_and_the_hooks_of_the_script_run_in_order(
    observed: Observed, ranks: int
) -> None:
    case = observed.case_of(HEALTHY[ranks])
    assert "own hooks in order" in printed_by(case)
    kept = []
    for rank in case.ranks:
        assert rank.metadata.steps == STEPS
        assert rank.steps["step"].tolist() == list(range(STEPS))
        assert timed(rank.steps[:FIRST]) is not None
        known = timed(rank.steps)
        assert len(known) < 0.4 * STEPS
        assert known["samples"].tolist() == [8] * len(known)
        assert not np.isnan(known["phases"][:, layout.BACKWARD]).any()
        kept.append(set(known["step"][FIRST:].tolist()))
    shared = set.intersection(*kept)
    assert len(shared) > 0.5 * max(map(len, kept))
    assert not list_warnings(diagnose(case))


def test_a_slow_rank_is_named(observed: Observed) -> None:
    case = observed.case_of(SLOW)
    for rank in case.ranks:
        assert len(timed(rank.steps)) < 0.4 * STEPS
    (found,) = list_warnings(diagnose(case))
    assert (found.code, [one.rank for one in found.culprits]) == ("straggler-compute", [1])


def test_steps_that_turn_long_are_timed_in_full(observed: Observed) -> None:
    for rank in observed.case_of(LONG).ranks:
        untimed = np.flatnonzero(rank.steps["flags"] & layout.UNTIMED)
        assert len(untimed) > 400
        assert untimed.max() <= FIRST + 800


@pytest.mark.untimed
@pytest.mark.parametrize("at", [1001, 1003])
def test_a_rank_that_sleeps_in_an_untimed_step_is_named(tmp_path: Path, at: int) -> None:
    recording = tmp_path / "recording"
    doctor = [*IMPATIENT_DOCTOR, "run", "--dir", str(recording), "--on-hang", "stop", "--"]
    hanging = torchrun("short_steps.py", "--hang-at", str(at), "--rank", "1")
    ended = run([*doctor, *hanging])
    assert "no progress" in ended.err
    case = load_recording(recording)
    assert [rank.last_step for rank in case.ranks] == [at - 2] * 2
    found = diagnose(case).findings[0]
    assert (found.code, [one.rank for one in found.culprits]) == ("hang-rank-behind", [1])


@pytest.mark.untimed
def test_a_time_out_in_an_untimed_step_names_the_rank_that_stayed_away(tmp_path: Path) -> None:
    recording = tmp_path / "recording"
    doctor = [sys.executable, "-m", "mgpu_doctor", "run", "--dir", str(recording), "--"]
    hanging = torchrun("short_steps.py", "--hang-at", "1001", "--rank", "1", "--timeout", "8")
    ended = run([*doctor, *hanging])
    assert ended.code != 0
    found = diagnose(load_recording(recording)).findings[0]
    assert [one.rank for one in found.culprits] == [1]
