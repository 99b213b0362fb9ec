"""Sources of one job become one case; others are rejected in one sentence."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from mgpu_probes.outside import jobs, processes

from mgpu_doctor.case.model import Case
from mgpu_doctor.diagnosis import diagnose
from mgpu_doctor.examine import case_sources, live_targets
from mgpu_doctor.examine.subjects import UnknownSubject
from mgpu_doctor.signatures.known_signatures import SIGNATURES
from tests.support.jobs import until
from tests.support.recordings import HEALTHY, recording

DUMPS = Path(__file__).parents[2] / "recorded" / "flight"
KNOWN = next(signature for signature in SIGNATURES if signature.code == "failed-gloo")
LOST = f"[rank1]: {KNOWN.example}\n"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MGPU_DOCTOR_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_targets, "CONFIRM_AFTER", (0.1,))
    monkeypatch.setattr(live_targets, "SAMPLES", 3)
    monkeypatch.setattr(live_targets, "SAMPLE_INTERVAL", 0.01)


@pytest.fixture
def ranks() -> Iterator[list[int]]:
    """Two processes that look like ranks of one job and sleep."""
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(os.getpid())}  # of this test alone
    environment = {**os.environ, "WORLD_SIZE": "2", **meeting}
    program = "import time; print('up', flush=True); time.sleep(100)"
    started = [
        subprocess.Popen(
            [sys.executable, "-c", program],
            env={**environment, "RANK": str(rank)},
            stdout=subprocess.PIPE,
        )
        for rank in range(2)
    ]
    try:
        for process in started:
            assert process.stdout is not None
            process.stdout.readline()
        yield [process.pid for process in started]
    finally:
        for process in started:
            process.kill()
            process.communicate()


def load_cases(*words: object) -> list[Case]:
    return case_sources.load_cases([str(word) for word in words], lambda _: None)


def refused(*words: object) -> str:
    with pytest.raises(UnknownSubject) as why:
        load_cases(*words)
    return str(why.value)


def test_two_processes_of_a_job_are_one_case(ranks: list[int]) -> None:
    (case,) = load_cases(*ranks)
    assert case.subject.kind == "process"
    assert [(rank.rank, rank.pid) for rank in case.ranks] == [(0, ranks[0]), (1, ranks[1])]
    assert len(case.job_snapshots) >= 2
    assert [finding for finding in diagnose(case).findings if finding.severity == "critical"] == []


def test_progress_is_reported_while_it_looks(ranks: list[int]) -> None:
    said: list[str] = []
    case_sources.load_cases([str(ranks[0])], said.append)
    assert said


def test_a_process_that_is_no_job_is_named() -> None:
    assert refused(os.getpid()).startswith(f"process {os.getpid()} is not part of a training job")
    assert "no process 999999999" in refused(999999999)


def test_all_jobs_of_the_machine(
    ranks: list[int], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recording(home / "runs" / "alive", [HEALTHY] * 2, live=True)
    job = jobs.find(ranks[0])
    assert job is not None
    monkeypatch.setattr(jobs, "find_all", lambda: (job,))
    assert {case.subject.kind for case in load_cases()} == {"recording", "process"}


def test_no_job_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "find_all", tuple)
    assert refused().startswith("no training job is running on this machine")


def test_a_job_that_ends_meanwhile(ranks: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    job = jobs.find(ranks[0])
    assert job is not None
    for pid in ranks:
        os.kill(pid, 9)
    until(lambda: all(not processes.is_alive(pid) for pid in ranks))
    monkeypatch.setattr(jobs, "find_all", lambda: (job,))
    assert "ended while it was being examined" in refused()


def test_a_log_belongs_to_the_recording_beside_it(tmp_path: Path) -> None:
    folder = recording(tmp_path / "one", [HEALTHY] * 2)
    log = tmp_path / "train.log"
    log.write_text(LOST)
    (case,) = load_cases(folder, log)
    assert case.subject.kind == "recording"
    assert len(case.ranks) == 2
    assert [sign.rank for sign in case.signs] == [1]
    (alone,) = load_cases(log)
    assert alone.subject.kind == "log"


def test_dumps_alone_and_beside_a_recording(tmp_path: Path) -> None:
    dumps = next(path for path in sorted(DUMPS.iterdir()) if path.is_dir())
    (case,) = load_cases(dumps)
    assert case.subject.kind == "trace"
    assert len(case.flights) == len(case.ranks) > 1
    folder = recording(tmp_path / "one", [HEALTHY] * 2)
    (both,) = load_cases(folder, dumps)
    assert len(both.ranks) == 2
    assert both.flights == case.flights


def test_evidence_for_two_jobs_is_nobodys(tmp_path: Path) -> None:
    one, other = (recording(tmp_path / name, [HEALTHY] * 2) for name in ("one", "other"))
    log = tmp_path / "train.log"
    log.write_text(LOST)
    assert "one job" in refused(one, other, log)
    assert len(load_cases(one, other)) == 2


def test_what_cannot_be_read_is_reported(tmp_path: Path) -> None:
    broken = tmp_path / "trace_0"
    broken.write_bytes(b"\x80\x04garbage, entries")
    assert "trace_0 is not a flight-recorder dump" in refused(broken)
    assert "does not exist" in refused(tmp_path / "gone")
