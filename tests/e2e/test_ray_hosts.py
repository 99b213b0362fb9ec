"""A real Ray cluster of one node, which was started under the doctor, reached by an actor."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from mgpu_doctor.case.recording_case import load_recording
from tests.support.gathered_fleets import STEPS, diagnose_hosts
from tests.support.jobs import JOBS, started, until
from tests.support.ray_jobs import doctor, of, refused, settings

pytestmark = pytest.mark.slow  # alone: the agent sees all jobs of the machine

FAULT = ("--fault", "forward", "--rank", "1", "--ms", "60")


def test_workers_of_a_cluster_that_runs_already_are_found_and_the_slow_one_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recording = tmp_path / "recording"
    if refused(recording):
        return
    monkeypatch.setenv("MGPU_DOCTOR_HOME", str(tmp_path / "home"))
    address = f"127.0.0.1:{free_port()}"
    script = [sys.executable, str(JOBS / "ray_train.py"), "--storage", str(tmp_path / "kept")]
    with ExitStack() as stack:
        for name, value in stack.enter_context(settings(tmp_path)).items():
            monkeypatch.setenv(name, value)
        cluster = stack.enter_context(started(doctor("run", recording, "--", *head(address))))
        until(lambda: answers(address), 120)
        stack.enter_context(started([*script, "--address", address, "--steps", "3000", *FAULT]))
        until(lambda: least_steps(recording) >= STEPS, 200)
        code, found = diagnose_hosts("--ray", address)
        cluster.send_signal(signal.SIGTERM)
        cluster.communicate(timeout=90)
    assert code == 1
    assert (found["job"]["launcher"], found["job"]["strategy"]) == ("ray", "ddp")
    assert [rank["rank"] for rank in found["ranks"]] == [0, 1]
    first = found["findings"][0]
    assert first["code"] == "straggler-compute"
    assert [one["rank"] for one in first["culprits"]] == [1]
    assert of(tmp_path) == []


def head(address: str) -> list[str]:
    """The command that starts the first node of a cluster, and waits."""
    host, port = address.split(":")
    ray = str(Path(sys.executable).with_name("ray"))
    options = ("--block", "--num-cpus", "2", "--include-dashboard=false")
    return [ray, "start", "--head", "--node-ip-address", host, "--port", port, *options]


def answers(address: str) -> bool:
    ray = str(Path(sys.executable).with_name("ray"))
    command = (ray, "status", "--address", address)
    return subprocess.run(command, capture_output=True, check=False, timeout=60).returncode == 0


def least_steps(recording: Path) -> int:
    """Of the rank with fewest, of two."""
    ranks = load_recording(recording).ranks
    steps = sorted(len(rank.steps) for rank in ranks if rank.rank is not None)
    return steps[0] if len(steps) == 2 else 0


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])
