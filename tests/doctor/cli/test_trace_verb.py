"""The verb `trace` without anything to trace: one sentence each, and no file is left."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from mgpu_probes.outside.traces.probe_tracing import LocalRanks

from mgpu_doctor.cli import app

STAND = "import sys, time; print(flush=True); time.sleep(600)"


def ran(*words: str) -> Result:
    return CliRunner().invoke(app, ["trace", *words])


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MGPU_DOCTOR_HOME", str(tmp_path / "home"))


def refused(result: Result, sentence: str, code: int = 3) -> None:
    assert result.exit_code == code
    assert sentence in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert not list(Path().glob("trace-*"))


def test_a_pid_of_nobody() -> None:
    refused(ran("4194304"), "there is no process 4194304")


def test_a_process_that_trains_nothing() -> None:
    refused(ran(str(os.getpid())), "is not part of a training job")


def test_what_is_no_job(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text("step 1\n")
    refused(ran("train.log"), "is not a running job: name the id")


def test_a_recording_whose_job_is_over(tmp_path: Path) -> None:
    (tmp_path / "old/hosts").mkdir(parents=True)
    (tmp_path / "old/recording.json").write_text("{}")
    refused(ran("old"), "`mgpu-doctor diagnose old` examines its recording")


@pytest.fixture
def bare() -> object:
    """A process that says it is a rank, without PyTorch and without our probe."""
    environment = {**os.environ, "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    environment |= {"MASTER_ADDR": "localhost", "MASTER_PORT": str(os.getpid())}
    command = [sys.executable, "-c", STAND]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


def test_a_job_without_pytorch(bare: subprocess.Popen[bytes]) -> None:
    refused(ran(str(bare.pid)), "has loaded PyTorch")


def test_a_folder_with_something_in_it_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mgpu_doctor.examine import trace_targets

    route = trace_targets.TraceRoute(LocalRanks({1: "x"}))
    monkeypatch.setattr(trace_targets, "find_trace_route", lambda _: route)
    (tmp_path / "full").mkdir()
    (tmp_path / "full/other.json").write_text("{}")
    refused(ran("1", "-o", "full"), "full is not empty", code=2)


def test_ranks_that_refuse_are_reported_once_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from mgpu_probes.outside.traces.trace_requests import TakenTrace

    from mgpu_doctor.examine import trace_targets

    why = "the script's own \x1b[31mprofiler is at work"
    route = trace_targets.TraceRoute(LocalRanks({1: "x"}))
    monkeypatch.setattr(trace_targets, "find_trace_route", lambda _: route)
    monkeypatch.setattr(
        trace_targets, "take_traces", lambda *_: [TakenTrace(n, n, None, why) for n in range(6)]
    )
    result = ran("1")
    refused(
        result, "rank 0, rank 1, rank 2, rank 3 and 2 more: no trace (the script's own profiler"
    )
    assert "\x1b" not in result.stderr


@pytest.mark.parametrize("options", [("--steps", "0"), ("--seconds", "nan"), ("--seconds", "1e9")])
def test_numbers_out_of_bounds(options: tuple[str, str]) -> None:
    assert ran("1", *options).exit_code == 2
