"""Real jobs that stall periodically: the right rank, cause and period."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import pytest

from mgpu_doctor.case.recording_case import load_recording
from mgpu_doctor.diagnosis import diagnose
from mgpu_doctor.findings import Diagnosis, Finding
from tests.support import observed_jobs
from tests.support.jobs import forked, forked_trainer, run
from tests.support.observed_jobs import list_warnings

pytestmark = pytest.mark.slow

diagnose_job = partial(observed_jobs.diagnose_job, launcher=forked)


def single_warning(diagnosis: Diagnosis) -> Finding:
    """The only finding of at least warning severity."""
    found = list_warnings(diagnosis)
    assert len(found) == 1, [one.title for one in found]
    return found[0]


@pytest.mark.parametrize(
    ("stall", "who", "code"),
    [("gc", 1, "gc-pauses"), ("evaluation", 0, "rank0-only-work"), ("log", 0, "rank0-only-work")],
)
def test_what_stops_every_twentieth_step(tmp_path: Path, stall: str, who: int, code: str) -> None:
    options = ("--stall", stall, "--who", str(who), "--every", "20", "--ms", "300")
    found = single_warning(diagnose_job(tmp_path, "stalls", *options))
    assert (found.code, [one.rank for one in found.culprits]) == (code, [who])
    assert found.victims == (1 - who,)
    assert "every 20 steps" in found.title


def test_ranks_that_evaluate_together_get_no_warning(tmp_path: Path) -> None:
    """What does nothing of the kind: `test_host_causes` has such a job of 300 steps."""
    assert (
        list_warnings(diagnose_job(tmp_path, "stalls", "--stall", "evaluation", "--who", "-1"))
        == []
    )


@pytest.mark.parametrize(
    ("fault", "code", "culprits"),
    [
        ("stall:rank=1,every=15,ms=300", "straggler-transient", (1,)),
        ("stall:rank=0,every=15,ms=300,kind=save", "checkpoint-stall", (0,)),
        ("stall:rank=all,every=15,ms=150,kind=gc", "gc-pauses", (0, 1)),
    ],
)
def test_a_trainers_planted_stall(
    tmp_path: Path, fault: str, code: str, culprits: tuple[int, ...]
) -> None:
    job = forked_trainer("torch-ddp", model="cnn-nano", device="cpu", steps=110, fault=fault)
    recording = tmp_path / "recording"
    doctor = [sys.executable, "-m", "mgpu_doctor", "run", "-q", "--dir", str(recording), "--"]
    ended = run([*doctor, *job])
    assert ended.code == 0, ended.err
    found = single_warning(diagnose(load_recording(recording)))
    assert (found.code, sorted(one.rank or 0 for one in found.culprits)) == (code, [*culprits])
    assert found.victims == tuple(rank for rank in (0, 1) if rank not in culprits)
    assert "every 15 steps" in found.title


def test_two_long_stalls_are_enough(tmp_path: Path) -> None:
    options = ("--stall", "log", "--who", "1", "--every", "50", "--ms", "2000", "--steps", "120")
    found = single_warning(diagnose_job(tmp_path, "stalls", *options))
    assert (found.code, [one.rank for one in found.culprits]) == ("straggler-transient", [1])
    assert (found.victims, found.evidence[0].value) == ((0,), 2)
