"""The verb `treat`: wrong usage, machines without private views, stopping, and exit codes."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from mgpu_doctor.advice.treatment_catalogue import ADVICE, TREATMENTS
from mgpu_doctor.cli import app
from mgpu_doctor.treat import job_treatment
from mgpu_doctor.treat.job_treatment import JobTreatment
from mgpu_doctor.treat.treatment_file import read_treatments
from mgpu_doctor.treat.treatment_plan import Candidate
from mgpu_doctor.treat.trial_session import Session
from tests.support.simulated_trials import CRASH, SimulatedJob


@pytest.fixture(autouse=True)
def at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGPU_DOCTOR_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(job_treatment, "why_not_private", lambda _: None)


def treat(*words: str) -> Result:
    return CliRunner().invoke(app, ["treat", *words])


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--", "no-such-program-anywhere"], "command not found"),
        ([], "name the command to treat"),
        (["latest", "--", "ls"], "name the command to treat"),
        (["--only", "loader-worker", "--", "ls"], "Did you mean loader-workers?"),
        (["--only", "loader-workers=2", "--", "ls"], "write --try loader-workers=2."),
        (["--try", "loader-worker=2", "--", "ls"], "Did you mean loader-workers?"),
        (["--try", "loader-workers=0", "--", "ls"], "from 1 to 64"),
        (["--try", "gc-freeze=3", "--", "ls"], "has no value"),
        (["--budget", "5", "--", "ls"], "30s or more"),
        (["--budget", "1e9", "--", "ls"], "30s or more"),
        (["--budget", "ten", "--", "ls"], "30s or more"),
        (["-o", "/no/such/folder/t.toml", "--", "ls"], "no such folder"),
        (["--goal", "memory", "--", "ls"], "names no batch size"),
        (["--goal", "throughput", "--only", "gc-freeze", "--", "ls"], "leave out --only"),
    ],
)
def test_wrong_usage_is_one_sentence_and_code_2(words: list[str], sentence: str) -> None:
    result = treat(*words)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1
    assert sentence in result.stderr


def test_the_list_names_every_treatment() -> None:
    result = treat("--list")
    assert result.exit_code == 0
    treatments, _, advice = result.stdout.partition("\n\n")
    listed = [row.split("=")[0] for row in treatments.splitlines() if not row.startswith(" ")]
    assert listed == [*TREATMENTS]
    assert all(each.summary in advice for each in ADVICE)


def test_without_private_views_nothing_starts_before_yes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_treatment, "why_not_private", lambda _: "namespaces: not allowed here")
    result = treat("--", "ls")
    assert result.exit_code == 3
    assert "namespaces: not allowed here" in result.stderr
    assert "--yes" in result.stderr


def simulate(
    monkeypatch: pytest.MonkeyPatch, job: SimulatedJob, after: Callable[[], None] = lambda: None
) -> None:
    """Lets the verb try `gc-freeze` on a simulated job."""

    def run(self: JobTreatment, _: Path, *, budget: float, **_others: object) -> None:
        self.session = Session(
            job.run, budget=budget, steps=60, clock=job.clock, report=lambda *_: None
        )
        self.session.measure_baseline()
        self.candidates = [Candidate("gc-freeze", True, None, ())]
        self.session.try_values({"gc-freeze": True})
        after()
        self.complete = True

    monkeypatch.setattr(JobTreatment, "run", run)


def quiet_job(ratio: float) -> SimulatedJob:
    """Its steps take `ratio` times as long with `gc-freeze`, and vary little."""
    random = np.random.default_rng(1)
    return SimulatedJob(
        random, {"gc-freeze": ratio}, between_runs=0.001, within_runs=0.01, stalls=0.0
    )


@pytest.mark.parametrize(
    ("ratio", "code", "said"),
    [(0.5, 0, "To keep what helps:"), (1.0, 1, "Nothing is shown to help.")],
)
def test_exit_codes_and_the_file_of_what_helps(
    ratio: float, code: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = quiet_job(ratio)
    simulate(monkeypatch, job)
    file = tmp_path / "treatment.toml"
    result = treat("-o", str(file), "--", "ls")
    assert result.exit_code == code
    assert said in result.stdout
    assert file.exists() is (code == 0)
    assert ("was not written" in result.stderr) is (code != 0)
    if code == 0:
        treatments = read_treatments(file)
        assert treatments.values == {"gc-freeze": True}
        assert treatments.saved is not None
        assert treatments.saved.low < 0.5 < treatments.saved.high + 0.02


def test_the_file_lies_where_the_user_is_and_not_where_the_job_ran(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = quiet_job(0.5)
    simulate(monkeypatch, job)
    for name in ("job", "user", "recording"):
        (tmp_path / name).mkdir()
    info = {"command": ["ls"], "cwd": str(tmp_path / "job")}
    (tmp_path / "recording" / "recording.json").write_text(json.dumps(info))
    monkeypatch.chdir(tmp_path / "user")
    assert treat("-o", "t.toml", str(tmp_path / "recording")).exit_code == 0
    assert [file.name for file in (tmp_path / "user").iterdir()] == ["t.toml"]
    assert not [*(tmp_path / "job").iterdir()]


def test_treatments_that_are_named_with_the_goal_memory_are_judged_by_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    goals = []

    def run(self: JobTreatment, _: Path, **_others: object) -> None:
        goals.append((self.by_memory, self.only, dict(self.wanted)))

    monkeypatch.setattr(JobTreatment, "run", run)
    treat("--goal", "memory", "--only", "optimizer-zero1", "--", "ls")
    treat("--only", "optimizer-zero1", "--", "ls")
    assert goals == [(True, ("optimizer-zero1",), {}), (False, ("optimizer-zero1",), {})]


def test_a_job_that_fails_by_itself_ends_with_code_3(monkeypatch: pytest.MonkeyPatch) -> None:
    job = SimulatedJob(np.random.default_rng(1))
    monkeypatch.setattr(job, "run", lambda *_, **__: _failed(job))
    simulate(monkeypatch, job)
    result = treat("--", "ls")
    assert (result.exit_code, result.stdout) == (3, "")
    assert "the job cannot be tried: rank 0 failed." in result.stderr


def test_a_job_that_fails_the_second_time_keeps_what_was_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = SimulatedJob(np.random.default_rng(1))
    first = job.run({}, steps=60, limit=1.0)
    trials = iter((first, _failed(job)))
    monkeypatch.setattr(job, "run", lambda *_, **__: next(trials))
    simulate(monkeypatch, job)
    result = treat("--", "ls")
    assert result.exit_code == 3
    assert result.stderr.count("\n") == 1
    assert "the job ran once, and failed the second time: rank 0 failed." in result.stderr
    assert "(1 run of 60 steps)" in result.stdout


def _failed(job: SimulatedJob) -> object:
    return SimulatedJob(job.random, failing={"gc-freeze": CRASH}).run(
        {"gc-freeze": True}, steps=60, limit=1.0
    )


def test_a_signal_keeps_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    job = quiet_job(0.5)
    simulate(monkeypatch, job, after=lambda: os.kill(os.getpid(), signal.SIGTERM))
    before = signal.getsignal(signal.SIGTERM)
    result = treat("--json", "--", "ls")
    assert result.exit_code == 128 + signal.SIGTERM
    assert '"verdict": "helps"' in result.stdout
    assert '"complete": false' in result.stdout
    assert signal.getsignal(signal.SIGTERM) == before


def test_run_refuses_a_file_without_treatments(tmp_path: Path) -> None:
    file = tmp_path / "wrong.toml"
    file.write_text("x = 1")
    result = CliRunner().invoke(app, ["run", "--treat", str(file), "--", "ls"])
    assert result.exit_code == 2
    assert "is not a file of treatments" in result.stderr
