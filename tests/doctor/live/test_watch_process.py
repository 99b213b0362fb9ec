"""A job is examined by a process of its own: what frames show meanwhile, and if it is killed."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import numpy as np
import pytest
from mgpu_probes.inprocess import layout
from mgpu_probes.inprocess.blackbox import Writer

from mgpu_doctor.live.job_watch import Watch
from mgpu_doctor.live.seen_job import Seen
from mgpu_doctor.live.step_heatmap import Heatmap
from mgpu_doctor.live.watch_process import WatchFailed, WatchProcess
from mgpu_doctor.recording.layout import boxes
from mgpu_doctor.rules.settings import Settings
from tests.support.boxes import write_steps
from tests.support.recordings import SLOW_INPUT, WAITING, recording

PATIENCE = 30.0


@pytest.fixture(scope="module")
def process() -> Iterator[WatchProcess]:
    """One for all tests, because it takes a second to start."""
    with closing(WatchProcess()) as started:
        yield started


@pytest.fixture
def writers(tmp_path: Path) -> Iterator[list[Writer]]:
    """Of two ranks that have done 100 steps, in the recording `job`."""
    place = boxes(recording(tmp_path / "job", (), live=True), os.uname().nodename)
    with ExitStack() as stack:
        made = [
            stack.enter_context(
                closing(Writer.open(place, rank=rank, local_rank=rank, world_size=2))
            )
            for rank in range(2)
        ]
        for writer in made:
            writer.birth({"framework": "torch", "strategy": "ddp"})
            writer.state(layout.RUNNING)
            write_steps(writer, 100)
        yield made


def pid_of(process: WatchProcess) -> int:
    assert process._process is not None
    return process._process.pid


@contextmanager
def held(process: WatchProcess) -> Iterator[None]:
    """The process gets no further, but a test that waits for it fails in the end."""
    pid = pid_of(process)
    os.kill(pid, signal.SIGSTOP)
    release = threading.Timer(PATIENCE, os.kill, (pid, signal.SIGCONT))
    release.start()
    try:
        yield
    finally:
        release.cancel()
        if process._process is not None and process._process.pid == pid:
            os.kill(pid, signal.SIGCONT)


def awaited(process: WatchProcess, condition: Callable[[Seen], bool]) -> Seen:
    end = time.monotonic() + PATIENCE
    while not condition(seen := process.poll()):
        assert time.monotonic() < end
        time.sleep(0.01)
    return seen


def test_frames_have_the_newest_step_while_the_ranks_are_examined(
    process: WatchProcess, writers: list[Writer], tmp_path: Path
) -> None:
    process.turn_to(tmp_path / "job")
    first = process.poll()
    assert (first.diagnosis.furthest_step, first.going.step) == (99, None)
    with held(process):
        process._due = 0.0
        for steps in (100, 103):
            write_steps(writers[1], 3, first=steps)
            seen = process.poll()
            assert process._is_asked
            assert seen.diagnosis is first.diagnosis
            assert seen.going.step == steps + 2
            assert seen.read > first.read
    after = awaited(process, lambda seen: seen.diagnosis is not first.diagnosis)
    assert (after.diagnosis.furthest_step, after.going.step) == (105, None)


def test_a_screen_that_is_drawn_seldom_waits_for_what_it_shows(
    process: WatchProcess, writers: list[Writer], tmp_path: Path
) -> None:
    process.turn_to(tmp_path / "job")
    process.poll()
    write_steps(writers[1], 3, first=100)
    process._due = 0.0
    process._polled -= 2 * PATIENCE
    assert process.poll().diagnosis.furthest_step == 102


def test_it_sees_what_this_process_would_see(process: WatchProcess, tmp_path: Path) -> None:
    job = (WAITING, WAITING, SLOW_INPUT, WAITING)
    folder = recording(tmp_path / "job", job, live=True)
    with closing(Watch(folder)) as watch:
        expected = watch.poll()
    process.turn_to(folder)
    seen = process.poll()
    assert [finding.code for finding in seen.diagnosis.findings] == ["straggler-input"]
    assert seen.diagnosis.findings == expected.diagnosis.findings
    assert seen.diagnosis.ranks == expected.diagnosis.ranks
    assert isinstance(seen.heat, Heatmap)
    assert isinstance(expected.heat, Heatmap)
    np.testing.assert_array_equal(seen.heat.excess, expected.heat.excess)
    ranks = zip(seen.diagnosis.case.ranks, expected.diagnosis.case.ranks, strict=True)
    for rank, same in ranks:
        for name in ("step", "end_ns", "phases"):
            np.testing.assert_array_equal(rank.steps[name], same.steps[name])
        with pytest.raises(ValueError, match="read-only"):
            rank.steps["step"] = 0


def test_settings_apply_in_the_process(tmp_path: Path) -> None:
    folder = recording(tmp_path / "job", (WAITING, SLOW_INPUT, WAITING), live=True)
    settings = Settings(ignore=frozenset({"straggler-input"}))
    with closing(WatchProcess(settings, heated=False)) as process:
        process.turn_to(folder)
        seen = process.poll()
    assert "straggler-input" not in {finding.code for finding in seen.diagnosis.findings}
    assert (seen.heat, seen.map) == (None, None)


def test_if_it_is_killed_the_next_frame_starts_another(
    process: WatchProcess, writers: list[Writer], tmp_path: Path
) -> None:
    assert writers
    process.turn_to(tmp_path / "job")
    process.poll()
    os.kill(pid_of(process), signal.SIGKILL)
    process._due = 0.0
    with pytest.raises(WatchFailed, match=r"has ended \(exit code -9\)"):
        awaited(process, lambda _: False)
    process.turn_to(tmp_path / "job")
    assert process.poll().diagnosis.furthest_step == 99


def test_what_is_no_recording_is_reported_and_tried_again(
    process: WatchProcess, tmp_path: Path
) -> None:
    process.turn_to(tmp_path / "job")
    for _ in range(2):
        with pytest.raises(WatchFailed, match=r"NotARecording: .*job"):
            process.poll()
    recording(tmp_path / "job", (WAITING, WAITING), live=True)
    assert len(process.poll().diagnosis.ranks) == 2


def test_another_recording_does_not_wait_for_the_one_before(
    process: WatchProcess, writers: list[Writer], tmp_path: Path
) -> None:
    assert writers
    process.turn_to(tmp_path / "job")
    process.poll()
    with held(process):
        process._due = 0.0
        process.poll()
        process.turn_to(recording(tmp_path / "other", (WAITING,), live=True))
        assert len(process.poll().diagnosis.ranks) == 1
