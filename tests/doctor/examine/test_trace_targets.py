"""How the ranks of a job can be traced, by how they were started; or why they cannot."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from mgpu_probes.outside.jobs.running_jobs import RANK, JobProcess, RunningJob

from mgpu_doctor.examine import trace_targets
from mgpu_doctor.examine.subjects import UnknownSubject
from mgpu_doctor.examine.trace_targets import find_trace_route

TORCH, TENSORFLOW = "r-xp /lib/libtorch_cpu.so", "r-xp /lib/libtensorflow_cc.so.2"


def job(monkeypatch: pytest.MonkeyPatch, maps: str = TORCH, user: int = 0, **given: str) -> None:
    """One rank, this process, started with what is given."""
    uid = os.geteuid() + user
    rank = JobProcess(
        os.getpid(), 1, RANK, "R", 0, 0, 1, "python", (), 0, 0.0, uid, "alice", None, None
    )
    monkeypatch.setattr(trace_targets, "_find_job", lambda _: RunningJob(None, None, 1, (rank,)))
    monkeypatch.setattr(trace_targets, "read_environment", lambda *_: given)
    monkeypatch.setattr(trace_targets, "_read_maps", lambda _: maps)


def test_our_probe_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listening = tmp_path / f"node.{os.getpid()}.0.sock"
    listening.touch()
    job(monkeypatch, MGPU_DOCTOR_BOXES=str(tmp_path), KINETO_USE_DAEMON="1")
    way = find_trace_route("1")
    assert way.ranks is not None
    assert ([one.pid for one in way.ranks.processes], way.daemon) == ([os.getpid()], ())


def test_then_kineto_s_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    job(monkeypatch, KINETO_USE_DAEMON="1", KINETO_IPC_SOCKET_DIR="/run/dyno")
    way = find_trace_route("1")
    assert ([one.pid for one in way.daemon], way.socket_folder) == ([os.getpid()], "/run/dyno")


@pytest.mark.parametrize(
    ("maps", "user", "given", "sentence"),
    [
        (TORCH, 0, {}, "next time, start it with `mgpu-doctor run -- COMMAND`"),
        (TENSORFLOW, 0, {}, "tf.profiler.experimental.start(FOLDER)"),
        ("", 0, {}, "next time, start it"),
        (TORCH, 1, {}, "the job belongs to alice: run `mgpu-doctor trace` as alice"),
        (TORCH, 0, {"MGPU_DOCTOR_BOXES": "/nowhere"}, "cannot be traced yet"),
    ],
)
def test_why_no_way_leads_there(
    monkeypatch: pytest.MonkeyPatch, maps: str, user: int, given: dict[str, str], sentence: str
) -> None:
    job(monkeypatch, maps, user, **given)
    with pytest.raises(UnknownSubject) as found:
        find_trace_route("1")
    assert sentence in str(found.value)
