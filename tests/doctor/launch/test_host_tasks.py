"""Of several tasks on a host, the first one that still runs samples the host and watches it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from mgpu_probes.outside import processes

from mgpu_doctor.launch import host_tasks
from mgpu_doctor.launch.host_tasks import EarlierTasks
from mgpu_doctor.recording.write import private_folder, write_json
from tests.support.launching import doctor, eventually, read_json, read_lines

HOST = os.uname().nodename
STEP = {
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_ID": "2",
    "SLURM_STEP_NUM_NODES": "1",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_NODEID": "0",
    "MASTER_ADDR": "127.0.0.1",
}


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def start(stack: ExitStack, command: list[str], **more: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(command, stdin=subprocess.PIPE, env={**os.environ, **more})
    stack.callback(process.wait)
    stack.callback(process.kill)
    return process


def facts_of(doctor: subprocess.Popen[bytes], job: subprocess.Popen[bytes]) -> dict[str, Any]:
    pids = {"doctor": doctor.pid, "job": job.pid}
    ticks = {f"{who}_start_ticks": processes.find_start_ticks(pid) for who, pid in pids.items()}
    return {"host": HOST, **{f"{who}_pid": pid for who, pid in pids.items()}, **ticks}


@pytest.mark.parametrize("ends", ["job", "doctor"])
def test_a_task_watches_until_its_job_or_its_doctor_has_ended(
    ends: str, tmp_path: Path, stack: ExitStack
) -> None:
    assert EarlierTasks(tmp_path, HOST, 0).have_ended()
    tasks = EarlierTasks(tmp_path, HOST, 2)
    running = [{who: start(stack, ["cat"]) for who in ("doctor", "job")} for _ in range(2)]
    for part, task in zip((f"hosts/{HOST}", f"hosts/{HOST}/tasks/1"), running, strict=True):
        assert not tasks.have_ended()  # one has no part yet
        write_json(private_folder(tmp_path / part) / "recording.json", facts_of(**task))
    for task in running:
        assert not tasks.have_ended()
        task[ends].kill()
        task[ends].wait()
    assert tasks.have_ended()


def test_a_task_that_records_nothing_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = EarlierTasks(tmp_path, HOST, 1)
    assert not tasks.have_ended()
    monkeypatch.setattr(host_tasks, "LATE", 0.0)
    assert tasks.have_ended()


def test_the_next_task_samples_the_host_when_the_first_has_ended(
    tmp_path: Path, stack: ExitStack
) -> None:
    folder = tmp_path / "r"
    host = folder / "hosts" / HOST
    parts = (host, host / "tasks" / "1")
    tasks = []
    for number, part in enumerate(parts):
        place = {"SLURM_PROCID": str(number), "SLURM_LOCALID": str(number)}
        tasks.append(start(stack, doctor(folder, "cat"), **STEP, **place))
        eventually("its part", partial(has_begun, part))
    first, second = (str(facts(part)["job_pid"]) for part in parts)

    def sampled() -> list[set[str]]:
        samples = host / "host.jsonl"
        return [set(line["processes"]) for line in read_lines(samples)] if samples.exists() else []

    eventually("a sample of both", lambda: {first, second} <= set().union(*sampled()))
    assert tasks[0].stdin is not None
    tasks[0].stdin.close()
    eventually("a sample of the second", lambda: {second} in sampled())
    assert tasks[1].stdin is not None
    tasks[1].stdin.close()
    assert [task.wait() for task in tasks] == [0, 0]


def has_begun(part: Path) -> bool:
    return "job_pid" in facts(part)


def facts(part: Path) -> dict[str, Any]:
    return read_json(part / "recording.json") if (part / "recording.json").exists() else {}
