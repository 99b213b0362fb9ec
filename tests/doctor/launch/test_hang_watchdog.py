"""When a hanging job is sampled, and how often it is reported."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from mgpu_probes.inprocess.blackbox import Writer
from mgpu_probes.outside.jobs import RunningJob

from mgpu_doctor.launch import hang_evidence, hang_watchdog
from mgpu_doctor.launch.hang_watchdog import Alarm, HangWatchdog
from mgpu_doctor.launch.run_recording import RunRecording
from tests.support.boxes import write_steps
from tests.support.jobs import until

FAST = {"EVERY": 0.005, "LEAST": 0.03, "LASTING": 0.2, "START": 0.06}


class Watched:
    """One box, and what was done because of it; `then`: what follows as soon as a hang is told."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        folder.mkdir()
        self.writer = Writer.open(folder, rank=0, local_rank=0, world_size=2)
        write_steps(self.writer, 3, spacing_ns=1_000_000)
        self.looks = 0
        self.hangs = True
        self.told: list[str] = []
        self.then: Callable[[], None] = lambda: None
        for name, value in FAST.items():
            monkeypatch.setattr(hang_watchdog, name, value)
        monkeypatch.setattr(hang_evidence, "keep", self.keep)
        recording = RunRecording(None)
        recording.boxes = folder
        self.boxes = [folder]
        monkeypatch.setattr(recording, "list_box_folders", lambda: self.boxes)
        self.over = threading.Event()
        alarm = Alarm(self.hung, lambda _: self.told.append("lasts"))
        self.start = HangWatchdog(recording, 1, self.over, alarm).start

    def keep(self, _: RunRecording, __: int, ___: Callable[[], bool]) -> bool:
        self.looks += 1
        return self.hangs

    def hung(self, _: float) -> None:
        self.told.append("hung")
        self.then()


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    one = Watched(tmp_path / "boxes", monkeypatch)
    yield one
    one.over.set()


def test_a_hang_is_reported_once_and_once_more_when_it_lasts(watched: Watched) -> None:
    watched.start()
    until(lambda: watched.told == ["hung", "lasts"])
    assert watched.looks == 2


def test_a_job_that_works_again_is_not_said_to_hang_for_long(watched: Watched) -> None:
    """Its boxes are silent as before, but whoever looks sees it at work: nobody may end it."""
    watched.then = lambda: setattr(watched, "hangs", False)
    watched.start()
    until(lambda: watched.looks > 1)
    assert watched.told == ["hung"]


@pytest.mark.slow
def test_one_that_ends_may_be_followed_by_another(watched: Watched) -> None:
    watched.start()
    until(lambda: watched.told[:1] == ["hung"])
    write_steps(watched.writer, 1, first=3)
    until(lambda: watched.told.count("hung") == 2)


def test_what_is_no_hang_is_looked_at_more_and_more_seldom(watched: Watched) -> None:
    watched.hangs = False
    watched.start()
    until(lambda: watched.looks >= 3)
    assert watched.told == []
    watched.hangs = True
    until(lambda: watched.told[:1] == ["hung"])


@pytest.mark.parametrize("moves_after", [1, 2, 3, 4])
def test_samples_count_only_if_the_job_still_stands_after_the_last(
    moves_after: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another node may end the job just as its ranks are sampled here."""
    job = RunningJob("srun", None, None, ())
    monkeypatch.setattr("mgpu_doctor.launch.hang_evidence.jobs.find", lambda _: job)
    monkeypatch.setattr(hang_evidence, "take_snapshot", lambda *_, **__: {"at": 1.0})
    recording = RunRecording(tmp_path)
    recording.part = tmp_path / "of this node"
    recording.boxes = tmp_path
    (tmp_path / "hosts" / recording.host).mkdir(parents=True)
    asked = iter(range(1, moves_after))
    hang_evidence.keep(recording, 1, lambda: next(asked, None) is not None)
    kept = [path.read_text().count("\n") for path in tmp_path.rglob("looks.jsonl")]
    assert kept == ([3] if moves_after == 4 else [])


def test_a_rank_that_has_left_is_no_hang(watched: Watched) -> None:
    watched.then = lambda: watched.writer.leave(0)
    watched.start()
    until(lambda: watched.told == ["hung"])
    threading.Event().wait(0.3)
    assert (watched.looks, watched.told) == (1, ["hung"])


def test_progress_of_a_rank_of_another_task_is_progress(watched: Watched, tmp_path: Path) -> None:
    """Its box lies in a folder of its own, where a recording is on a network file system."""
    (tmp_path / "other").mkdir()
    watched.boxes.append(tmp_path / "other")
    other = Writer.open(tmp_path / "other", rank=1, local_rank=1, world_size=2)
    watched.start()
    until(lambda: watched.told[:1] == ["hung"])
    write_steps(other, 1)
    until(lambda: watched.told.count("hung") == 2)


def test_a_job_of_long_steps_has_longer_patience(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = Writer.open(tmp_path, rank=0, local_rank=0, world_size=1)
    assert hang_evidence.longest_step([tmp_path]) is None
    write_steps(box, 100, spacing_ns=2_000_000_000)
    assert hang_evidence.longest_step([tmp_path]) == pytest.approx(2.0)
    monkeypatch.setattr(hang_watchdog, "STEPS", 1e9)
    watched = Watched(tmp_path / "boxes", monkeypatch)
    watched.start()
    threading.Event().wait(0.3)
    watched.over.set()
    assert watched.looks == 0
