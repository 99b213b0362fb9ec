"""Frames contain their history: of a running job, a replay, a machine."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from mgpu_doctor.live import history_measures
from mgpu_doctor.live.history_collector import History
from mgpu_doctor.live.history_spans import Spans
from mgpu_doctor.live.live_jobs import LiveJobs
from mgpu_doctor.live.replay import Replay
from mgpu_doctor.recording.home import runs
from mgpu_doctor.recording.layout import HOST_SAMPLES, HOSTS
from mgpu_doctor.tui.screens.graph_selection import Kind, Lane, Subject, spans
from tests.support.recordings import HEALTHY, SLOW_INPUT, WAITING, recording

JOB = (WAITING, WAITING, SLOW_INPUT, WAITING)


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGPU_DOCTOR_HOME", str(tmp_path))


def cpu(history: History | None) -> Spans:
    assert history is not None
    return spans(history, Lane(Subject(Kind.HOST), history_measures.CPU, ""))


def with_host_samples(folder: Path, *at: float) -> Path:
    lines = [json.dumps({"at": one, "cpu_percent": 25.0}) + "\n" for one in at]
    (folder / HOSTS / os.uname().nodename / HOST_SAMPLES).write_text("".join(lines))
    return folder


def test_every_frame_of_a_machine_adds_to_its_history() -> None:
    live = LiveJobs()
    for _ in range(3):
        frame = live.frame(0)
    assert frame.history is not None
    assert frame.history.first is not None
    memory = spans(frame.history, Lane(Subject(Kind.HOST), history_measures.MEMORY, ""))
    assert len(memory) == 3
    assert memory.end[-1] <= frame.at


def test_a_job_that_was_there_before_brings_its_past_along() -> None:
    now = time.time()
    folder = recording(runs() / "20260101-000000-job", JOB, live=True)
    with_host_samples(folder, now - 12, now - 11, now - 10)
    frame = LiveJobs().frame(0)
    assert cpu(frame.history).end[:3].tolist() == [now - 12, now - 11, now - 10]
    assert frame.history is not None
    assert [rank.rank for rank in frame.history.ranks] == [0, 1, 2, 3]


def test_a_job_that_is_over_brings_no_past_of_this_machine() -> None:
    folder = recording(runs() / "20260101-000000-job", (HEALTHY,))
    frame = LiveJobs(with_host_samples(folder, time.time() - 10)).frame(0)
    assert frame.diagnosis is not None
    assert not (cpu(frame.history).end < time.time() - 9).any()


def test_a_replay_knows_what_was_known_then() -> None:
    folder = recording(runs() / "r", JOB)
    replay = Replay(folder)
    replay.seek(1)
    end = replay.frame(0)
    assert end.replay is not None
    with_host_samples(folder, end.at - 4, end.at - 3, end.at - 2, end.at + 9)
    again = Replay(folder)
    again.seek(1)
    frame = again.frame(0)
    assert cpu(frame.history).end.tolist() == [end.at - 4, end.at - 3, end.at - 2]
    assert frame.history is not None
    lane = Lane(Subject(Kind.RANK, 2), history_measures.INPUT, "")
    assert spans(frame.history, lane).mean == pytest.approx(SLOW_INPUT["input"], rel=1e-3)
