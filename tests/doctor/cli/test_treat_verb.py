"""The verb `treat`: wrong usage, machines without private views, stopping, and exit codes."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from click.testing import CliRunner, Result

from mgpu_doctor.advice.treatment import Value
from mgpu_doctor.advice.treatment_catalogue import ADVICE, TREATMENTS, describe_values
from mgpu_doctor.case.treatment_proofs import read_tried
from mgpu_doctor.cli import app
from mgpu_doctor.formatting import format_share
from mgpu_doctor.recording.layout import TRIALS
from mgpu_doctor.treat import job_treatment
from mgpu_doctor.treat.job_treatment import JobTreatment
from mgpu_doctor.treat.treatment_file import read_treatments
from mgpu_doctor.treat.trial_runner import StoppedError, Trial
from mgpu_doctor.treat.trial_session import INTERRUPTED, NOT_REACHED
from tests.support import diagnoses
from tests.support.simulated_trials import SimulatedJob

SCHEMA = json.loads(
    (Path(__file__).parents[3] / "docs" / "treat.schema.json").read_text(encoding="utf-8")
)


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
        (["-o", "/", "--", "ls"], "it is a folder"),
        (["-o", "/proc/t.toml", "--", "ls"], "/proc/t.toml cannot be written (No such file"),
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
    assert all(each.summary in " ".join(advice.split()) for each in ADVICE)
    long = [row.strip() for row in result.stdout.splitlines() if len(row) > 80]
    assert set(long) <= {each.lines for each in ADVICE}  # to be copied


def test_without_private_views_nothing_starts_before_yes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_treatment, "why_not_private", lambda _: "namespaces: not allowed here")
    result = treat("--", "ls")
    assert result.exit_code == 3
    assert "namespaces: not allowed here" in result.stderr
    assert "--yes" in result.stderr


def simulate(
    monkeypatch: pytest.MonkeyPatch, job: SimulatedJob, *, stopped_in: int | None = None
) -> None:
    """Lets the verb try treatments on a simulated job. `stopped_in`: the number of a run in which
    SIGTERM arrives twice, from 0."""

    class Runner:
        def __init__(self, *_: object, is_stopped: Callable[[], bool], **_others: object) -> None:
            self.is_stopped = is_stopped

        def run(self, values: Mapping[str, Value], **given: Any) -> Trial:
            trial = job.run(values, **given)
            if len(job.ran) - 1 == stopped_in:
                for _ in range(2):
                    os.kill(os.getpid(), signal.SIGTERM)
            if self.is_stopped():
                raise StoppedError
            return replace(
                trial, case=diagnoses.straggler().case if given.get("keeps_case") else None
            )

    monkeypatch.setattr(job_treatment, "TrialRunner", Runner)


def quiet_job(ratio: float, name: str = "gc-freeze") -> SimulatedJob:
    """Its steps take `ratio` times as long with a treatment, and vary little."""
    random = np.random.default_rng(1)
    return SimulatedJob(random, {name: ratio}, between_runs=0.001, within_runs=0.01, stalls=0.0)


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
    result = treat("--try", "gc-freeze", "-o", str(file), "--", "ls")
    assert result.exit_code == code
    assert said in result.stdout
    assert file.exists() is (code == 0)
    assert ("was not written" in result.stderr) is (code != 0)
    if code == 0:
        treatments = read_treatments(file)
        assert treatments.values == {"gc-freeze": True}
        assert treatments.saved is not None
        assert treatments.saved.low < 0.5 < treatments.saved.high + 0.02


def test_a_file_that_can_no_longer_be_written_does_not_hide_what_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "removed"
    folder.mkdir()
    job = quiet_job(0.5)
    simulate(monkeypatch, job)
    run = job.run

    def run_once_removed(*given: Any, **named: Any) -> Trial:
        if folder.exists():
            folder.rmdir()
        return run(*given, **named)

    monkeypatch.setattr(job, "run", run_once_removed)
    result = treat("--try", "gc-freeze", "-o", str(folder / "t.toml"), "--", "ls")
    assert result.exit_code == 2
    assert "To keep what helps:" in result.stdout
    assert "t.toml cannot be written" in result.stderr


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
    assert treat("--try", "gc-freeze", "-o", "t.toml", str(tmp_path / "recording")).exit_code == 0
    assert [file.name for file in (tmp_path / "user").iterdir()] == ["t.toml"]
    assert not [*(tmp_path / "job").iterdir()]


def test_a_recording_keeps_what_all_sessions_showed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest result of each treatment and value; what was not measured replaces nothing."""
    info = {"command": ["ls"], "cwd": str(tmp_path)}
    (tmp_path / "recording.json").write_text(json.dumps(info))

    def keep(name: str, ratio: float, stopped_in: int | None = None) -> dict[str, str | None]:
        simulate(monkeypatch, quiet_job(ratio, name.partition("=")[0]), stopped_in=stopped_in)
        treat("--try", name, "--steps", "60", str(tmp_path))
        jsonschema.validate(json.loads((tmp_path / TRIALS).read_text()), SCHEMA)
        return {describe_values(dict(p.values)): p.verdict for p in read_tried(tmp_path)}

    assert keep("loader-workers=2", 0.5) == {"loader-workers=2": "helps"}
    both = {"loader-workers=2": "helps", "ddp-no-search": "helps"}
    assert keep("ddp-no-search", 0.5) == both
    assert keep("ddp-no-search", 0.5, stopped_in=2) == both
    assert keep("ddp-no-search", 2.0) == both | {"ddp-no-search": "worse"}
    assert list(keep("loader-workers=4", 0.5)) == [
        "loader-workers=4",
        "ddp-no-search",
        "loader-workers=2",
    ]


def test_earlier_trials_that_do_not_keep_the_schema_are_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "recording.json").write_text(json.dumps({"command": ["ls"], "cwd": str(tmp_path)}))
    simulate(monkeypatch, quiet_job(0.5))
    treat("--try", "gc-freeze", str(tmp_path))
    content = json.loads((tmp_path / TRIALS).read_text())
    (right,) = content["treatments"]
    wrong = ["x", {}, right | {"verdict": "great"}, right | {"values": {"threads": [1]}}]
    many = [right | {"values": {"threads": count}} for count in range(1, 65)]
    content["treatments"] = [*wrong, right | {"values": {"threads": 9}, "loss": 1}, *many]
    (tmp_path / TRIALS).write_text(json.dumps(content))
    treat("--try", "gc-freeze", str(tmp_path))
    merged = json.loads((tmp_path / TRIALS).read_text())
    jsonschema.validate(merged, SCHEMA)
    assert [each["values"] for each in merged["treatments"]] == [
        {"gc-freeze": True},
        *({"threads": count} for count in range(1, 64)),
    ]


def test_several_values_of_a_treatment_are_tried_and_the_best_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = quiet_job(0.5, "loader-workers")
    simulate(monkeypatch, job)
    several = [word for count in (2, 4, 2) for word in ("--try", f"loader-workers={count}")]
    file = tmp_path / "t.toml"
    result = treat("--json", *several, "-o", str(file), "--", "ls")
    report = json.loads(result.stdout)
    shares = {
        each["values"]["loader-workers"]: each["saved"]["step_fraction"]
        for each in report["treatments"]
    }
    best = max(shares, key=lambda count: shares[count])
    assert sorted(shares) == [2, 4]
    assert report["kept"] == {"loader-workers": best}
    assert f"saves {format_share(shares[best])} of the step time" in file.read_text()


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


@pytest.mark.parametrize(("words", "hints"), [((), True), (("--yes",), False)])
def test_a_job_that_fails_by_itself_ends_with_code_3(
    words: tuple[str, ...], hints: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = SimulatedJob(np.random.default_rng(1), failing_at={0})
    simulate(monkeypatch, job)
    result = treat(*words, "--", "ls")
    assert (result.exit_code, result.stdout, len(job.ran)) == (3, "", 1)
    assert "the job cannot be tried: rank 0 failed." in result.stderr
    assert ("has no network" in result.stderr) is hints


def test_a_job_that_fails_the_second_time_keeps_what_was_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    simulate(monkeypatch, SimulatedJob(np.random.default_rng(1), failing_at={1}))
    result = treat("--try", "gc-freeze", "--", "ls")
    assert result.exit_code == 3
    assert result.stderr.count("\n") == 1
    assert "the job ran once, and failed the second time: rank 0 failed." in result.stderr
    assert "(1 run of 60 steps); findings: straggler-input" in result.stdout
    assert result.stdout.endswith("gc-freeze: the trials ended first.\n\nNothing was tried.\n")


@pytest.mark.parametrize(
    ("run", "verdicts"),
    [
        (1, [("untried", NOT_REACHED), ("untried", NOT_REACHED)]),
        (2, [("untried", INTERRUPTED), ("untried", NOT_REACHED)]),
        (5, [("helps", None), ("untried", INTERRUPTED)]),
    ],
)
def test_a_signal_keeps_what_was_measured_and_accounts_for_the_rest(
    run: int, verdicts: list[tuple[str, str | None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job runs twice as it is, then in blocks of three runs."""
    job = quiet_job(0.5, "loader-workers")
    simulate(monkeypatch, job, stopped_in=run)
    before = signal.getsignal(signal.SIGTERM)
    options = ("--try", "loader-workers=2", "--try", "ddp-no-search", "--steps", "60")
    result = treat("--json", *options, "--", "ls")
    assert result.exit_code == 128 + signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) == before
    assert len(job.ran) == run + 1
    report = json.loads(result.stdout)
    assert report["complete"] is False
    assert [(each["verdict"], each["reason"]) for each in report["treatments"]] == verdicts
    assert report["kept"] == ({"loader-workers": 2} if run == 5 else {})


def test_a_signal_that_the_caller_ignores_stays_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `nohup` does with SIGHUP."""
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        simulate(monkeypatch, quiet_job(0.5), stopped_in=1)
        assert treat("--try", "gc-freeze", "--", "ls").exit_code == 0
    finally:
        signal.signal(signal.SIGTERM, before)


def test_run_refuses_a_file_without_treatments(tmp_path: Path) -> None:
    file = tmp_path / "wrong.toml"
    file.write_text("x = 1")
    result = CliRunner().invoke(app, ["run", "--treat", str(file), "--", "ls"])
    assert result.exit_code == 2
    assert "is not a file of treatments" in result.stderr
