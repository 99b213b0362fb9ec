"""The first node waits for the others, and tells a node that is lost from one that runs."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from mgpu_doctor.launch import node_parts, run_recording
from mgpu_doctor.launch.job_nodes import JobNodes
from mgpu_doctor.launch.node_parts import (
    are_lost,
    await_parts,
    finish_job,
    list_before,
    list_unfinished,
)
from mgpu_doctor.recording.joint_recordings import Absence
from mgpu_doctor.recording.layout import END, HOSTS, INFO
from mgpu_doctor.recording.write import write_json


def part(recording: Path, host: str, **end: object) -> Path:
    folder = recording / HOSTS / host
    folder.mkdir(parents=True)
    write_json(folder / INFO, {"host": host})
    if end:
        write_json(folder / END, end)
    return folder


def find_lost_before(recording: Path, own: str, number: int, age: float) -> tuple[str, ...]:
    """The parts of all nodes before this one, if all of them are here and lost."""
    before = list_before(recording, number)
    lost = len(before) == number and are_lost(recording, own, before, age)
    return before if lost else ()


class Clock:
    """Time that passes only while somebody waits. `meanwhile`: called with the time each time."""

    def __init__(self) -> None:
        self.now = 0.0
        self.meanwhile: Callable[[float], None] = lambda _: None

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.meanwhile(self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(node_parts, "time", clock)
    return clock


@pytest.mark.parametrize(("age", "waited"), [(60.0, 15.0), (86_400.0, 35.0)])
def test_a_part_that_nobody_touches_is_lost_and_one_that_is_touched_runs(
    tmp_path: Path, clock: Clock, age: float, waited: float
) -> None:
    part(tmp_path, "a", exit_code=1, ended=10.0)
    part(tmp_path, "dead")
    alive = part(tmp_path, "alive") / INFO
    clock.meanwhile = lambda now: os.utime(alive, (now // 1, now // 1))
    assert await_parts(tmp_path, "a", 3, age) == {"dead": "lost", "alive": "running"}
    assert clock.now == pytest.approx(waited, abs=0.5)


def test_nobody_is_waited_for_once_all_have_ended_or_are_lost(tmp_path: Path, clock: Clock) -> None:
    part(tmp_path, "a", exit_code=1, ended=10.0)
    part(tmp_path, "dead")
    assert await_parts(tmp_path, "a", 2, 60.0) == {"dead": "lost"}
    assert clock.now == pytest.approx(7.0, abs=0.5)
    part(tmp_path, "b", exit_code=1, ended=10.0)
    clock.now = 0.0
    assert await_parts(tmp_path, "a", 2, 60.0, hurry=True) == {"dead": "running"}
    assert clock.now == pytest.approx(3.0, abs=0.5)


def test_a_part_that_still_arrives_is_waited_for(tmp_path: Path, clock: Clock) -> None:
    part(tmp_path, "a", exit_code=0, ended=10.0)

    def arrive(now: float) -> None:
        if now > 9 and not (tmp_path / HOSTS / "b").exists():
            part(tmp_path, "b", exit_code=0, ended=11.0)

    clock.meanwhile = arrive
    assert await_parts(tmp_path, "a", 2, 60.0) == {}
    assert not (tmp_path / HOSTS / "b").exists()
    assert await_parts(tmp_path, "a", 2, 20.0, still_gathers=lambda: True) == {}
    assert (tmp_path / HOSTS / "b" / END).exists()


def test_a_host_is_not_lost_as_long_as_one_of_its_tasks_is_not(
    tmp_path: Path, clock: Clock
) -> None:
    part(tmp_path, "a", exit_code=0, ended=10.0)
    for name in ("a/tasks/1", "b", "b/tasks/1", "c", "c/tasks/1"):
        part(tmp_path, name)
    alive = tmp_path / HOSTS / "b" / "tasks" / "1" / INFO
    clock.meanwhile = lambda now: os.utime(alive, (now // 1, now // 1))
    states = {"a": "running", "b": "running", "c": "lost"}
    assert await_parts(tmp_path, "a", 6, 60.0) == states
    assert list_unfinished(tmp_path) == dict.fromkeys("abc", "running")


def test_the_second_node_finds_out_that_the_first_is_lost(tmp_path: Path, clock: Clock) -> None:
    first = part(tmp_path, "first")
    own = part(tmp_path, "second", exit_code=1, ended=10.0) / INFO
    os.utime(own, (1000.0, 1000.0))
    assert find_lost_before(tmp_path, "second", 1, 60.0) == ()  # which one is the first?
    write_json(first / INFO, {"host": "first", "node": 0})
    os.utime(first / INFO, (999.0, 999.0))
    assert find_lost_before(tmp_path, "second", 1, 60.0) == ("first",)
    assert clock.now == pytest.approx(6.0, abs=0.5)
    assert await_parts(tmp_path, "second", 2, 60.0, hurry=True, lost=["first"]) == {"first": "lost"}
    assert clock.now == pytest.approx(6.0, abs=0.5)

    os.utime(own, (1200.0, 1200.0))  # silent for long already
    assert find_lost_before(tmp_path, "second", 1, 60.0) == ("first",)
    assert clock.now == pytest.approx(6.0, abs=0.5)

    clock.meanwhile = lambda now: os.utime(first / INFO, (1000.0 + now, 1000.0 + now))
    os.utime(own, (1000.0, 1000.0))
    assert find_lost_before(tmp_path, "second", 1, 60.0) == ()
    write_json(first / END, {"exit_code": 1})
    os.utime(first / INFO, (1.0, 1.0))
    assert find_lost_before(tmp_path, "second", 1, 60.0) == ()
    assert clock.now < 7.0


def test_the_lowest_node_that_is_left_finds_out_that_those_before_it_are_lost(
    tmp_path: Path, clock: Clock
) -> None:
    """The names are in another order than the numbers, and each node has two tasks: its first one
    speaks for it."""
    names = ("d", "c", "b", "a")
    for number, name in enumerate(names):
        for folder in (part(tmp_path, name), part(tmp_path, f"{name}/tasks/1")):
            write_json(folder / INFO, {"host": name, "node": number})
            os.utime(folder / INFO, (1000.0, 1000.0))
    write_json(tmp_path / HOSTS / "d" / "tasks" / "1" / END, {"exit_code": 1})

    touched = tmp_path / HOSTS / "b" / INFO
    clock.meanwhile = lambda now: os.utime(touched, (1000.0 + now, 1000.0 + now))
    assert find_lost_before(tmp_path, "b", 2, 60.0) == ("d", "c")
    assert clock.now == pytest.approx(7.0, abs=0.5)  # for both
    assert find_lost_before(tmp_path, "a", 3, 60.0) == ()
    clock.meanwhile = lambda _: None
    write_json(tmp_path / HOSTS / "b" / END, {"exit_code": 1})
    assert find_lost_before(tmp_path, "a", 3, 60.0) == ()
    (tmp_path / HOSTS / "c" / INFO).unlink()  # not here: own disks
    assert find_lost_before(tmp_path, "b", 2, 60.0) == ()


def test_the_job_ended_as_its_first_failure_did(tmp_path: Path) -> None:
    part(tmp_path, "a", exit_code=1, signal=None, ended=12.0)
    part(tmp_path, "b", exit_code=None, signal=9, ended=11.0)
    part(tmp_path, "c", exit_code=0, signal=None, ended=13.0)
    unseen = {"host e": Absence("no route", silent=True), "host f": Absence("no key")}
    finish_job(tmp_path, {"d": "lost"}, unseen)
    assert json.loads((tmp_path / END).read_text()) == {
        "exit_code": None,
        "signal": 9,
        "ended": 13.0,
        "unfinished": {"d": "lost"},
        "unseen": {"host e": "no route", "host f": "no key"},
        "unanswered": ["host e"],
    }


@pytest.mark.parametrize("task", [0, 1])
def test_a_part_that_cannot_be_written_leaves_nothing(
    task: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(run_recording, "write_json", refuse)
    nodes = JobNodes("key", 1, 1, task == 0, 0, "1", task, 2)
    assert run_recording.RunRecording.begin(tmp_path / "r", {}, nodes).folder is None
    assert list((tmp_path / "r").iterdir()) == []
