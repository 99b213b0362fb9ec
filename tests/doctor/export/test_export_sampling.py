"""Samples are taken on request, one at a time, and no client waits forever."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from mgpu_doctor.export.sampling import NoSampleError, Sampler


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Making:
    """Counts how often, and how many at once."""

    def __init__(self, first: Callable[[], object] = lambda: None) -> None:
        self.made = 0
        self.most_at_once = 0
        self._at_once = 0
        self._first = first

    def __call__(self) -> bytes:
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        self.made += 1
        if self.made == 1:
            self._first()
        self._at_once -= 1
        return b"%d" % self.made


def test_a_sample_is_good_for_the_interval() -> None:
    clock, make = Clock(), Making()
    sampler = Sampler(make, 5.0, clock=clock)
    first = sampler.get()
    clock.now += 4.9
    assert sampler.get() is first
    assert sampler.age(first) == pytest.approx(4.9)
    assert sampler.late(first) == 0
    clock.now += 0.2
    assert sampler.late(first) == pytest.approx(0.1)
    assert sampler.get().text == b"2"
    assert make.made == 2


def test_what_took_long_to_make_is_good_for_as_long() -> None:
    clock = Clock()

    def slow() -> None:
        clock.now += 60

    sampler = Sampler(Making(slow), 5.0, clock=clock)
    first = sampler.get()
    assert first.took == 60
    clock.now += 59
    assert sampler.get() is first
    clock.now += 2
    assert sampler.get().text == b"2"


def test_who_asks_meanwhile_gets_the_same_sample() -> None:
    go = threading.Event()
    make = Making(lambda: go.wait(60))
    sampler = Sampler(make, 60.0)
    with ThreadPoolExecutor(8) as people:
        asked = [people.submit(sampler.get) for _ in range(8)]
        go.set()
        assert {one.result(60).text for one in asked} == {b"1"}
    assert (make.made, make.most_at_once) == (1, 1)


def test_a_driver_that_hangs_keeps_nobody() -> None:
    go = threading.Event()
    sampler = Sampler(Making(lambda: go.wait(60)), 60.0, patience=0.05)
    for _ in range(2):
        with pytest.raises(NoSampleError, match="takes longer than"):
            sampler.get()
    go.set()
    patient = Sampler(Making(), 60.0)
    assert patient.get().text == b"1"


def test_a_failure_is_reported_and_the_next_sample_may_succeed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail() -> None:
        raise ValueError("bad\x1b[2J\nthing")

    sampler = Sampler(Making(fail), 60.0)
    with pytest.raises(NoSampleError, match="failed"):
        sampler.get()
    assert capsys.readouterr().err == ("mgpu-doctor: the sample failed: ValueError: bad thing\n")
    assert sampler.get().text == b"2"
