"""Real jobs that fail for many causes: the right code, rank and line.

The script knows nothing of the doctor. Where the machine lets us, the cause is real, too: a memory
control group, a full file system, a tiny /dev/shm, limits of the process.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from mgpu_probes.outside.kernel_log import KernelLog

from mgpu_doctor.case.log_case import load_logs
from mgpu_doctor.case.model import Outcome
from mgpu_doctor.case.recording_case import load_recording
from mgpu_doctor.diagnosis import diagnose
from mgpu_doctor.findings import Finding
from mgpu_doctor.recording import layout
from tests.support.failing_jobs import (
    MIB,
    SCRIPT,
    FailedRun,
    in_small_shm,
    line_of,
    memory_group,
    run_failing,
    small_file_system,
    spawn_command,
)
from tests.support.jobs import (
    Launcher,
    alone,
    forked,
    forked_light,
    kill_family,
    plain,
    started,
    torchrun,
    until,
)
from tests.support.launching import eventually
from tests.support.observed_jobs import all_step, list_warnings, single_warning

pytestmark = [pytest.mark.slow, pytest.mark.untimed]

AT_LINE = {
    "raise": ("failed-exception", "raise"),
    "loader": ("failed-dataloader-worker", "loader"),
    "memory": ("oom-host", "memory"),
    "open-files": ("failed-open-files", "open-files"),
    "permission": ("failed-permission", "permission"),
    "shape": ("failed-shape-mismatch", "shape"),
    "bad-checkpoint": ("failed-checkpoint", "bad-checkpoint"),
    "reentrant": ("failed-reentrant-backward", "reentrant"),
}


def culprit_ranks(finding: Finding) -> list[int | None]:
    return [culprit.rank for culprit in finding.culprits]


def names_line(finding: Finding, mark: str) -> bool:
    """Whether it names the line of the script."""
    told = [finding.title, finding.cause, *(str(e.where or e.value) for e in finding.evidence)]
    line = line_of(mark)
    return any(f"failing_training.py:{line}" in text for text in told)


def diagnose_log(died: FailedRun) -> Finding:
    return single_warning(diagnose(load_logs([str(died.log)])))


@pytest.mark.parametrize("how", AT_LINE)
def test_what_one_rank_raised_is_reported_with_rank_and_line(how: str, tmp_path: Path) -> None:
    """The text of torchrun names ranks, too; that of the others is of the ranks alone."""
    code, mark = AT_LINE[how]
    special: dict[str, Launcher] = {"raise": torchrun, "reentrant": forked}
    launcher = special.get(how, forked_light)
    died = run_failing(how, tmp_path, "--folder", str(tmp_path), launcher=launcher)
    assert died.code != 0
    for finding in (single_warning(died.diagnosis), diagnose_log(died)):
        assert finding.code == code
        assert culprit_ranks(finding) == [1]
        assert names_line(finding, mark)


@pytest.mark.parametrize(
    ("how", "code", "expected"),
    [
        ("hangup", "failed-hangup", "SIGHUP"),
        ("cpu-limit", "failed-time-limit", "CPU time limit"),
        ("exit-aborting", "failed-exception", "exit code 3"),
        (
            "told",
            "failed-exception",
            f"at failing_training.py:{line_of('told')}: no such data set: numbers",
        ),
    ],
)
def test_an_end_without_an_exception_is_reported_with_its_rank(
    how: str, code: str, expected: str, tmp_path: Path
) -> None:
    finding = single_warning(run_failing(how, tmp_path).diagnosis)
    assert finding.code == code
    assert expected in finding.title
    assert culprit_ranks(finding) == [1]
    assert finding.victims == (0,)


def test_an_abort_after_the_last_step_is_no_failed_check(tmp_path: Path) -> None:
    finding = single_warning(run_failing("end-aborting", tmp_path, launcher=forked_light).diagnosis)
    assert (finding.code, culprit_ranks(finding)) == ("failed-signal", [1])
    assert "SIGABRT at exit after step 9" in finding.title
    assert finding.cause.startswith("Its script had finished.")
    assert "destroy_process_group" in finding.fixes[0].how


def test_a_bus_error_while_shared_memory_had_room_is_a_crash(tmp_path: Path) -> None:
    finding = single_warning(run_failing("bus", tmp_path, launcher=forked_light).diagnosis)
    assert finding.code == "failed-signal"
    assert "SIGBUS" in finding.title


@pytest.mark.parametrize(("how", "mark"), [("raise-all", "raise"), ("unused", "unused")])
def test_what_every_rank_raised_is_nobodys_own_fault(how: str, mark: str, tmp_path: Path) -> None:
    died = run_failing(how, tmp_path, launcher=forked_light if how == "raise-all" else forked)
    code = {"raise-all": "failed-exception", "unused": "failed-unused-parameters"}[how]
    finding = single_warning(died.diagnosis)
    assert finding.code == code
    assert culprit_ranks(finding) == [0, 1]
    assert names_line(finding, mark)
    assert diagnose_log(died).code == code


def test_a_script_that_dies_at_import(tmp_path: Path) -> None:
    finding = single_warning(run_failing("import", tmp_path).diagnosis)
    assert finding.code == "failed-exception"
    assert "No module named 'a_package_that_is_not_installed'" in finding.title
    assert names_line(finding, "import")


def test_a_worker_that_somebody_killed(tmp_path: Path) -> None:
    died = run_failing("loader-killed", tmp_path, launcher=forked_light)
    for finding in (single_warning(died.diagnosis), diagnose_log(died)):
        assert finding.code == "failed-dataloader-worker"
        assert culprit_ranks(finding) == [1]


@pytest.mark.parametrize("how", ["group-memory", "loader-memory"])
def test_a_control_group_without_memory(how: str, tmp_path: Path) -> None:
    with memory_group(400 * MIB) as group:
        real = group is not None
        fallback = "kill" if how == "group-memory" else "loader-killed"
        chosen = ("--group", str(group or ""))
        died = run_failing(how if real else fallback, tmp_path, *chosen, launcher=forked_light)
        if not real:
            _pretend_memory_ran_out(died)
        finding = single_warning(died.diagnosis)
    assert finding.code == "oom-host"
    assert culprit_ranks(finding) == [1]
    if how == "loader-memory":
        assert "lost a worker process" in finding.title
    if real:
        assert "the 400 MiB of its control group were full" in finding.title


def _pretend_memory_ran_out(died: FailedRun) -> None:
    """What the kernel would have told, where a test may make no control group."""
    host = died.recording / layout.HOSTS / os.uname().nodename
    told = json.loads((host / layout.ENDING).read_text())
    exits = [json.loads(line) for line in (host / layout.EXITS).read_text().splitlines()]
    killed = [one["pid"] for one in exits if one["signal"] == signal.SIGKILL]
    told["kills"] = [{"pid": pid, "constraint": "CONSTRAINT_MEMCG"} for pid in killed]
    told["kernel_log"] = {"trouble": None, "own_pids": True}
    (host / layout.ENDING).write_text(json.dumps(told))


def test_a_full_disk(tmp_path: Path) -> None:
    how = "disk-full"
    with small_file_system(tmp_path) as place:
        if place is None:  # a file that never has room, on which torch.save tells less
            (tmp_path / "log.txt").symlink_to("/dev/full")
            how = "log-full"
        chosen = ("--folder", str(place or tmp_path))
        died = run_failing(how, tmp_path, *chosen, launcher=forked_light)
        finding = single_warning(died.diagnosis)
    assert finding.code == "failed-disk-full"
    assert culprit_ranks(finding) == [1]
    assert names_line(finding, how)
    if place is not None:
        assert any(e.measure == f"least free on {place}" for e in finding.evidence)


def test_a_tiny_shared_memory(tmp_path: Path) -> None:
    before = in_small_shm()
    how = "shm" if before else "bus"
    died = run_failing(how, tmp_path, launcher=forked_light, before=before or ())
    if before is None:
        _pretend_it_was_full(died)
    finding = single_warning(died.diagnosis)
    assert finding.code == "shm-exhausted"
    if before is not None:
        assert "/dev/shm (8 MiB)" in finding.title


def _pretend_it_was_full(died: FailedRun) -> None:
    """Where nothing may be mounted."""
    host = died.recording / layout.HOSTS / os.uname().nodename
    told = json.loads((host / layout.ENDING).read_text())
    for place in told["places"]:
        if "shm" in place["roles"]:
            place["least"]["free"] = 0
    (host / layout.ENDING).write_text(json.dumps(told))


@pytest.mark.parametrize(
    ("how", "code"), [("pickling", "failed-spawn-pickling"), ("main-guard", "failed-main-guard")]
)
def test_a_spawn_that_cannot_start(how: str, code: str, tmp_path: Path) -> None:
    died = run_failing(how, tmp_path, launcher=spawn_command)
    for finding in (single_warning(died.diagnosis), diagnose_log(died)):
        assert finding.code == code
        assert names_line(finding, how)


def test_a_port_in_use(tmp_path: Path) -> None:
    died = run_failing("port-in-use", tmp_path, launcher=spawn_command)
    for finding in (single_warning(died.diagnosis), diagnose_log(died)):
        assert finding.code == "failed-port-in-use"
        assert culprit_ranks(finding) == [0]


def test_a_wrong_world_size(tmp_path: Path) -> None:
    finding = single_warning(run_failing("world-size", tmp_path, "--patience", "4").diagnosis)
    assert finding.code in ("failed-world-size", "failed-rendezvous")


def test_a_thread_that_fails_beside_a_job_that_ends_well(tmp_path: Path) -> None:
    died = run_failing("thread", tmp_path, launcher=forked_light)
    assert died.code == 0
    assert died.diagnosis.case.job.outcome is Outcome.COMPLETED
    assert list_warnings(died.diagnosis) == []


def test_a_dead_rank_of_a_job_that_nobody_watched() -> None:
    """Its launcher waits for another one first, so that it stays a zombie."""
    with memory_group(400 * MIB) as group:
        finding = _asked_about("circular_wait.py", "--group", str(group or ""))
    assert finding["code"] == "hang-rank-dead"
    assert [culprit["rank"] for culprit in finding["culprits"]] == [2]
    assert finding["victims"] == [0, 1]
    assert "SIGKILL" in finding["cause"] or "OOM killer killed it" in finding["cause"]
    if group is not None and KernelLog().trouble is None:
        assert "the 400 MiB of its control group were full" in finding["cause"]


def test_a_dead_rank_is_named_although_nobody_is_seen_to_wait_for_it() -> None:
    """One of the survivors waits for something else, in a call of its own."""
    finding = _asked_about("failing_allreduce.py", "kill", "--stuck")
    assert finding["code"] == "failed-killed"
    assert [culprit["rank"] for culprit in finding["culprits"]] == [2]


def _asked_about(*script: str) -> dict[str, Any]:
    """The only finding on a job that nobody recorded, once one of its ranks is a zombie."""
    job = plain(*script, ranks=3)
    with started(job) as launcher:
        until(lambda: _zombies(launcher.pid) == 1)
        asked = [sys.executable, "-m", "mgpu_doctor", "diagnose", str(launcher.pid), "--json"]
        told = subprocess.run(asked, stdout=subprocess.PIPE, check=False)
    assert told.returncode == 1
    (finding,) = json.loads(told.stdout)["findings"]
    assert isinstance(finding, dict)
    return finding


def _zombies(pid: int) -> int:
    children = psutil.Process(pid).children()
    return sum(child.status() == psutil.STATUS_ZOMBIE for child in children)


def test_a_terminal_that_closes_is_no_ranks_fault(tmp_path: Path) -> None:
    recording = tmp_path / "recording"
    doctor = [sys.executable, "-m", "mgpu_doctor", "run", "-q", "--dir", str(recording), "--"]
    job = plain(SCRIPT.name, "none", "--steps", "100000")
    with (
        alone(),
        subprocess.Popen(
            [*doctor, *job], stdout=subprocess.DEVNULL, stderr=-1, start_new_session=True
        ) as process,
    ):
        try:
            eventually("a step of each rank", lambda: all_step(recording, 2))
            os.killpg(process.pid, signal.SIGHUP)  # as the terminal does
            process.communicate(timeout=120)
        finally:
            kill_family(process.pid)
    diagnosis = diagnose(load_recording(recording))
    finding = single_warning(diagnosis)
    assert finding.code == "failed-hangup"
    assert finding.culprits == ()
    assert diagnosis.case.job.outcome is Outcome.KILLED
