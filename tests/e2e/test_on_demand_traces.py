"""On-demand traces of real jobs: of the right steps, without harm to the job."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from mgpu_doctor.case.profiler_case import case_of_traces
from tests.support.jobs import JOBS, run, started, until
from tests.support.observed_jobs import read_ranks

pytestmark = pytest.mark.slow

DOCTOR = [sys.executable, "-m", "mgpu_doctor"]


def test_a_running_job_is_traced_and_its_slow_rank_named(tmp_path: Path) -> None:
    recording, traces = tmp_path / "recording", tmp_path / "traces"
    slow = ["--fault", "slow:rank=1,phase=forward,ms=150"]
    job = [*DOCTOR, "train", "torch-ddp", "--quiet", "--dir", str(recording), "--steps", "400"]
    with started([*job, *slow]) as process:
        until(lambda: steps(recording) >= 10)
        asked = subprocess.run(
            [*DOCTOR, "trace", str(recording), "-o", str(traces)],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        before = steps(recording)
        until(lambda: steps(recording) > before + 5)
        assert process.poll() is None
    assert asked.returncode == 0, asked.stderr
    assert "Rank 1 is slowing down the other ranks" in asked.stdout
    assert "its forward pass" in asked.stdout
    files = sorted(traces.iterdir())
    assert [one.name for one in files] == ["rank0.json", "rank1.json"]
    assert {one.stat().st_mode & 0o777 for one in files} == {0o600}
    first, second = case_of_traces([traces]).traces
    marked = [
        sorted(name for name in one.names if "ProfilerStep" in name) for one in (first, second)
    ]
    assert len(marked[0]) == 20
    assert marked[0] == marked[1]


@pytest.mark.untimed
def test_collectives_on_cpus_are_not_timed(tmp_path: Path) -> None:
    recording = tmp_path / "recording"
    job = [*DOCTOR, "train", "torch-ddp", "--quiet", "--dir", str(recording), "--steps", "400"]
    with started(job) as process:
        until(lambda: steps(recording) >= 20)
        asked = subprocess.run(
            [*DOCTOR, "trace", str(recording), "--collectives", "-o", str(tmp_path / "dumps")],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        before = steps(recording)
        until(lambda: steps(recording) > before + 5)
        assert process.poll() is None
    assert (asked.returncode, asked.stdout) == (3, "")
    (sentence,) = asked.stderr.splitlines()
    assert "its backend is gloo, and only NCCL times collectives (rank 0, and 1 more" in sentence
    assert not (tmp_path / "dumps").exists()


def steps(recording: Path) -> int:
    """That every rank has taken."""
    ranks = read_ranks(recording)
    return min((len(one.steps) for one in ranks), default=0) if len(ranks) == 2 else 0


@pytest.mark.untimed
def test_a_trace_that_is_cancelled_after_it_was_written_is_removed(tmp_path: Path) -> None:
    job = [sys.executable, str(JOBS / "traced_on_demand.py"), "cancel"]
    ended = run([*DOCTOR, "run", "--quiet", "--dir", str(tmp_path), "--", *job])
    assert ended.code == 0, ended.err
    assert ended.out.strip() == "failed 20 it was cancelled"
    assert not list(tmp_path.rglob("*.trace.json"))


@pytest.mark.untimed
@pytest.mark.parametrize(
    ("event", "code", "expected"),
    [
        ("exit", 7, ""),
        ("profile", 0, "done 4 the script's own profiler began"),
        ("evaluate", 0, "done 0 no step came to its end"),
        ("fork", 0, "done 4 the process forked another"),
    ],
)
def test_what_a_profiler_would_not_survive_ends_the_trace(
    tmp_path: Path, event: str, code: int, expected: str
) -> None:
    job = [sys.executable, str(JOBS / "traced_on_demand.py"), event]
    ended = run([*DOCTOR, "run", "--quiet", "--dir", str(tmp_path), "--", *job])
    assert ended.code == code, ended.err
    assert ended.out.strip() == expected
    (trace,) = tmp_path.rglob("*.trace.json")
    assert trace.stat().st_mode & 0o777 == 0o600
    marks = re.findall(r"ProfilerStep#\d+", trace.read_text())
    assert len(marks) >= (1 if event == "evaluate" else 4)
