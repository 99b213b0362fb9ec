"""The first node waits for the others, and tells a node that is lost from one that runs."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from mgpu_doctor.launch import node_parts
from mgpu_doctor.launch.node_parts import await_parts, finish_job
from mgpu_doctor.recording.layout import END, HOSTS, INFO
from mgpu_doctor.recording.write import write_json


def part(recording: Path, host: str, **end: object) -> Path:
    folder = recording / HOSTS / host
    folder.mkdir(parents=True)
    write_json(folder / INFO, {"host": host})
    if end:
        write_json(folder / END, end)
    return folder


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


def test_the_job_ended_as_its_first_failure_did(tmp_path: Path) -> None:
    part(tmp_path, "a", exit_code=1, signal=None, ended=12.0)
    part(tmp_path, "b", exit_code=None, signal=9, ended=11.0)
    part(tmp_path, "c", exit_code=0, signal=None, ended=13.0)
    finish_job(tmp_path, {"d": "lost"}, {"host e": "no route"})
    assert json.loads((tmp_path / END).read_text()) == {
        "exit_code": None,
        "signal": 9,
        "ended": 13.0,
        "unfinished": {"d": "lost"},
        "unseen": {"host e": "no route"},
    }
