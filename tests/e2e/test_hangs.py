"""Real jobs that hang, examined from outside: the right code, rank and line.

The script of `tests/jobs` knows nothing of the doctor, and nothing is installed in the job.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mgpu_doctor.analysis.stacks.hang_analysis import LONG_WAIT
from mgpu_doctor.case.recording_case import load_recording
from mgpu_doctor.diagnosis import diagnose
from mgpu_doctor.findings import Finding
from tests.support.jobs import JOBS, Launcher, plain, run, started, torchrun, until
from tests.support.observed_jobs import list_warnings

pytestmark = pytest.mark.slow

SCRIPT = JOBS / "hangs.py"
LINES = SCRIPT.read_text(encoding="utf-8").splitlines()


def line(words: str) -> str:
    """`hangs.py:N` of the only line that holds these words."""
    (found,) = (at for at, text in enumerate(LINES, 1) if words in text)
    return f"{SCRIPT}:{found}"


STANDS = {
    "lock": ("critical", line("with lock, lock:")),
    "flock": ("critical", line("fcntl.flock(mine")),
    "queue": ("critical", line("queue.Queue().get()")),
    "pipe": ("critical", line("os.read(reader")),
    "gil": ("critical", line("ctypes.PyDLL")),
    "stop": ("critical", line("signal.SIGSTOP")),
    "sleep": ("warning", line("time.sleep(FOR_EVER)")),
    "poll": ("warning", line("time.sleep(0.01)")),
    "child": ("warning", line("subprocess.run")),
}
LOADER = {"loader": ("critical", line("with lock, lock:"))}


def examined(job: subprocess.Popen[str]) -> tuple[int, dict[str, Any]]:
    """What `diagnose` says of a running job: its exit code and its JSON."""
    done = subprocess.run(
        [sys.executable, "-m", "mgpu_doctor", "diagnose", str(job.pid), "--json"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def hung(
    folder: Path, how: str, *options: str, ranks: int = 3, launcher: Launcher = torchrun
) -> tuple[int, dict[str, Any], dict[str, Any]]:
    """Starts the job, waits until the chosen rank is where it is to stand, and examines it: exit
    code, diagnosis, and its only finding at warning or worse."""
    mark = folder / "mark"
    command = launcher("hangs.py", how, "--mark", str(mark), *options, ranks=ranks)
    with started(command) as job:
        until(lambda: mark.exists() or job.poll() is not None)
        assert job.poll() is None, job.communicate()
        code, diagnosis = examined(job)
        assert job.poll() is None
    return code, diagnosis, single_warning(diagnosis)


def single_warning(diagnosis: dict[str, Any]) -> dict[str, Any]:
    """The finding at warning or worse."""
    (finding,) = (one for one in diagnosis["findings"] if one["severity"] != "info")
    assert isinstance(finding, dict)
    return finding


def places(finding: dict[str, Any], rank: int) -> list[str]:
    return [one["where"] for one in finding["evidence"] if one["measure"] == f"rank {rank}"]


IN_TURN = [
    *((how, "reduce", 1) for how in STANDS),
    ("lock", "async", 1),
    ("lock", "pipeline", 0),
    ("lock", "pipeline", 2),
]
"""How a rank stands, what ranks do meanwhile in each step, and which rank it is."""


@pytest.mark.untimed
def test_a_rank_that_stands_is_named_with_its_line(tmp_path: Path) -> None:
    """One job: a rank stands in each of the ways, and goes on once that has been examined."""
    mark = tmp_path / "mark"
    ways, loops, ranks = zip(*IN_TURN, strict=True)
    options = (ways[0], "--then", *ways[1:], "--loop", *loops, "--rank", *map(str, ranks))
    command = plain("hangs.py", *options, "--mark", str(mark), "--life", "550", ranks=3)
    with started(command) as job:
        for number, (how, loop, rank) in enumerate(IN_TURN):
            at = Path(f"{mark}{number or ''}")
            until(partial(is_marked, at, job))
            assert job.poll() is None, (how, loop, job.communicate())
            if how == "poll":  # seen on several lines, it is behind once the others waited long
                until(partial(has_lasted, at, LONG_WAIT + 1))
            code, diagnosis = examined(job)
            check_hang(how, loop, rank, code, diagnosis)
            os.kill(int(at.read_text()), signal.SIGCONT if how == "stop" else signal.SIGUSR1)


def is_marked(mark: Path, job: subprocess.Popen[str]) -> bool:
    """Whether the rank has written its id, or the job has ended."""
    return job.poll() is not None or (mark.exists() and mark.read_text() != "")


def has_lasted(mark: Path, seconds: float) -> bool:
    """Whether the rank wrote its id that long ago."""
    return time.time() - mark.stat().st_mtime > seconds


def check_hang(how: str, loop: str, rank: int, code: int, diagnosis: dict[str, Any]) -> None:
    severity, where = (STANDS | LOADER)[how]
    case = (how, loop, rank)
    assert diagnosis["findings"], (case, diagnosis["stacks"])
    finding = single_warning(diagnosis)
    assert (code, finding["code"], finding["severity"]) == (1, "hang-rank-behind", severity), case
    assert [one["rank"] for one in finding["culprits"]] == [rank], case
    assert places(finding, rank) == [where], case
    if loop != "pipeline":  # in which not everybody waits for everybody
        assert finding["victims"] == [0, 2], case
    (marked,) = (one for one in diagnosis["stacks"] if one["culprit"])
    assert marked["ranks"] == [rank], case


def test_a_rank_that_computes_for_ever_is_named(tmp_path: Path) -> None:
    code, _, finding = hung(tmp_path, "spin", "--rank", "1", launcher=plain)
    assert (code, finding["code"], finding["severity"]) == (1, "hang-rank-behind", "warning")
    assert [one["rank"] for one in finding["culprits"]] == [1]
    assert finding["victims"] == [0, 2]
    assert "spin()" in finding["title"]


@pytest.mark.untimed
def test_a_rank_whose_loader_stands_is_named_with_the_line_of_its_worker(tmp_path: Path) -> None:
    code, diagnosis, _ = hung(tmp_path, "loader", "--rank", "1", launcher=plain)
    check_hang("loader", "reduce", 1, code, diagnosis)


@pytest.mark.untimed
def test_under_ddp_the_others_wait_in_the_backward_pass(tmp_path: Path) -> None:
    options = ("--loop", "ddp", "--rank", "0")
    _, _, finding = hung(tmp_path, "lock", *options, ranks=2, launcher=plain)
    assert finding["code"] == "hang-rank-behind"
    assert [one["rank"] for one in finding["culprits"]] == [0]
    assert places(finding, 0) == [STANDS["lock"][1]]


@pytest.mark.untimed
def test_a_rank_that_does_not_join_is_named_with_what_it_does(tmp_path: Path) -> None:
    _, _, finding = hung(tmp_path, "never-start", "--rank", "2", launcher=plain)
    assert finding["code"] == "hang-rendezvous"
    assert [one["rank"] for one in finding["culprits"]] == [2]
    assert places(finding, 2) == [line("time.sleep(FOR_EVER)")]


@pytest.mark.untimed
def test_a_rank_that_left_before_it_joined_is_missed(tmp_path: Path) -> None:
    _, _, finding = hung(tmp_path, "leave-early", "--rank", "1", launcher=plain)
    assert finding["code"] == "hang-rendezvous"
    assert [one["rank"] for one in finding["culprits"]] == [1]
    assert finding["victims"] == [0, 2]


@pytest.mark.untimed
@pytest.mark.parametrize(("how", "words"), [("other-op", "broadcast"), ("skip", "barrier")])
def test_ranks_in_different_collectives_are_reported_with_both_places(
    tmp_path: Path, how: str, words: str
) -> None:
    _, _, finding = hung(tmp_path, how, "--rank", "1", launcher=plain)
    assert (finding["code"], finding["severity"]) == ("hang-collective-mismatch", "critical")
    assert [one["rank"] for one in finding["culprits"]] == [1]
    assert words in finding["title"]
    wrong = line(
        "dist.broadcast(" if how == "other-op" else "dist.barrier()  # where the others reduce"
    )
    assert {one["where"] for one in finding["evidence"]} >= {
        wrong,
        line("dist.all_reduce(self.numbers)"),
    }


# `test_unhurt` has a loop of DistributedDataParallel.
@pytest.mark.parametrize(("loop", "times"), [("reduce", 2), ("pipeline", 1)])
def test_a_healthy_job_gives_no_finding_however_often_it_is_examined(
    tmp_path: Path, loop: str, times: int
) -> None:
    mark = tmp_path / "mark"
    command = plain("hangs.py", "healthy", "--loop", loop, "--mark", str(mark), ranks=2)
    with started(command) as job:
        until(mark.exists)
        for _ in range(times):
            code, diagnosis = examined(job)
            assert (code, diagnosis["findings"]) == (0, [])
        assert job.poll() is None


def test_a_rank_that_is_late_in_every_step_is_named_by_samples(tmp_path: Path) -> None:
    options = ("--rank", "1", "--late", "0.2", "--loop", "ddp")
    _, _, finding = hung(tmp_path, "late", *options, ranks=2, launcher=plain)
    assert finding["code"] == "straggler-other"
    assert [one["rank"] for one in finding["culprits"]] == [1]
    assert "prepare_slowly()" in finding["title"]


def recorded_finding(job: list[str], recording: Path) -> Finding:
    """The only finding at warning or worse of a job that fails under observation."""
    doctor = (sys.executable, "-m", "mgpu_doctor", "run", "-q", "--dir", str(recording), "--")
    assert run([*doctor, *job]).code != 0
    (finding,) = list_warnings(diagnose(load_recording(recording)))
    return finding


@pytest.mark.untimed
@pytest.mark.parametrize("loop", ["ddp", "pipeline"])
def test_a_hang_that_its_timeout_ends_before_anybody_looks(tmp_path: Path, loop: str) -> None:
    job = torchrun("hangs.py", "sleep", "--loop", loop, "--timeout", "3", "--rank", "1", ranks=3)
    finding = recorded_finding(job, tmp_path / "job")
    assert finding.code == "hang-rank-behind"
    assert [culprit.rank for culprit in finding.culprits] == [1]
    assert finding.victims == (0, 2)
    (wait,) = (row for row in finding.evidence if row.baseline is not None)
    assert 2.5 < float(wait.value or 0) < 30


@pytest.mark.untimed
def test_a_mismatch_that_its_timeout_ends_before_anybody_looks(tmp_path: Path) -> None:
    job = torchrun("hangs.py", "other-op", "--timeout", "3", "--rank", "1", ranks=3)
    finding = recorded_finding(job, tmp_path / "job")
    assert finding.code == "hang-collective-mismatch"
    assert [culprit.rank for culprit in finding.culprits] == [1]
    assert finding.victims == (0, 2)
