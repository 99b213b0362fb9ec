"""Runs real training jobs under observation, and diagnoses them."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from mgpu_probes.inprocess.layout import PHASES

from mgpu_doctor.analysis.machines.cpu_contention import surroundings
from mgpu_doctor.analysis.machines.rank_samples import RankSamples
from mgpu_doctor.case.model import Case, Rank
from mgpu_doctor.case.recording_case import NotARecording, load_recording
from mgpu_doctor.diagnosis import diagnose
from mgpu_doctor.findings import Diagnosis, Finding, Severity
from tests.support.disturbed_runs import MOST_CORES, repeat_disturbed
from tests.support.jobs import IN_PARALLEL, Ended, Launcher, plain, run
from tests.support.jobs_in_turn import Job, record_in_turn
from tests.support.jobs_in_turn import job as job_of


def run_undisturbed(command: Sequence[str], recording: Path) -> Ended:
    """Runs a command that writes a recording; again if other processes disturbed it."""

    def once() -> Ended:
        shutil.rmtree(recording, ignore_errors=True)
        return run(command)

    return repeat_disturbed(once)


def record_job(
    folder: Path,
    script: str,
    *options: str,
    ranks: int = 2,
    environment: Mapping[str, str] | None = None,
    launcher: Launcher = plain,
) -> Case:
    """Runs a script of `tests/jobs` under the doctor and returns its case. The job must succeed."""
    return record(folder, launcher(f"{script}.py", *options, ranks=ranks), environment)


def record(
    folder: Path, command: Sequence[str], environment: Mapping[str, str] | None = None
) -> Case:
    """The same of any command."""
    recording = folder / "recording"
    doctor = [sys.executable, "-m", "mgpu_doctor", "run", "-q", "--dir", str(recording), "--"]
    given = [f"{name}={value}" for name, value in (environment or {}).items()]
    ended = run_undisturbed(["env", *given, *doctor, *command], recording)
    assert ended.code == 0, ended.err
    return load_recording(recording)


def read_ranks(recording: Path) -> tuple[Rank, ...]:
    """The ranks of a running job; none while its recording is not there yet."""
    try:
        return load_recording(recording).ranks
    except (NotARecording, OSError):
        return ()


def all_step(recording: Path, ranks: int) -> bool:
    """Whether so many ranks of a running job have each taken a step."""
    seen = read_ranks(recording)
    return len(seen) == ranks and all(len(rank.steps) for rank in seen)


_plans: list[tuple[Job, ...]] = []


def plan(*jobs: Job) -> tuple[Job, ...]:
    """Lets these jobs run in turn once the first of them is requested: ten minutes at most, for
    the host is sampled less often later."""
    _plans.append(jobs)
    return jobs


class Observed:
    """Cases of jobs that several tests share: each job runs when it is first requested."""

    def __init__(self, folders: pytest.TempPathFactory) -> None:
        self._folders = folders
        self._cases: dict[Job, Case] = {}
        self._begun: set[tuple[Job, ...]] = set()
        """Plans that have run. If one failed, each of its other jobs runs by itself."""

    def case(self, script: str, *options: str, ranks: int = 2) -> Case:
        return self.case_of(job_of(script, *options, ranks=ranks))

    def diagnosis(self, script: str, *options: str, ranks: int = 2) -> Diagnosis:
        return diagnose(self.case(script, *options, ranks=ranks))

    def case_of(self, job: Job) -> Case:
        if job not in self._cases:
            waiting = (jobs for jobs in _plans if job in jobs and jobs not in self._begun)
            planned = next(waiting, (job,))
            self._begun.add(planned)
            self._record([each for each in planned if each not in self._cases])
        return self._cases[job]

    def _record(self, jobs: Sequence[Job]) -> None:
        """As `run_undisturbed`, it repeats what other processes disturbed."""
        if len(jobs) > 1:
            parts = record_in_turn(self._folders.mktemp("jobs"), jobs)
            cases = [load_recording(part) for part in parts]
            self._cases |= {
                job: case
                for job, case in zip(jobs, cases, strict=True)
                if IN_PARALLEL or cores_of_others(case) < MOST_CORES
            }
        for job in jobs:
            if job not in self._cases:
                folder = self._folders.mktemp("job")
                self._cases[job] = record(folder, job.command)


def printed_by(case: Case) -> str:
    """What a recorded job wrote to its standard output."""
    (output,) = Path(case.subject.ref).rglob("stdout.log")
    return output.read_text(encoding="utf-8")


def median_phases(rank: Rank) -> dict[str, float]:
    """Median seconds per step in each phase, without the first steps."""
    seconds = np.median(np.nan_to_num(rank.steps["phases"][5:]), axis=0)
    return dict(zip(PHASES, seconds.tolist(), strict=True))


def list_warnings(diagnosis: Diagnosis) -> list[Finding]:
    """The findings of at least warning severity."""
    return [finding for finding in diagnosis.findings if finding.severity is not Severity.INFO]


def single_warning(diagnosis: Diagnosis) -> Finding:
    """The only finding of at least warning severity; fails if there is not exactly one."""
    (finding,) = list_warnings(diagnosis)
    return finding


def cores_of_others(case: Case) -> float:
    """Cores that other processes used during the job, on the worst host."""
    return max(
        (each.outside or 0.0 for each in surroundings(RankSamples(case)).values()), default=0.0
    )


def find_finding(diagnosis: Diagnosis, code: str) -> Finding | None:
    """The finding with this code; None if there is none."""
    return next((finding for finding in diagnosis.findings if finding.code == code), None)
