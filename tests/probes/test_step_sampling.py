"""In a loop with short steps, the hooks rest between timed steps; the count of steps stays exact.

The loop runs on a simulated clock, with the real context, engine and box."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from mgpu_probes.inprocess import BOXES_VARIABLE, layout, step_sampling
from mgpu_probes.inprocess.device_clock import is_sampled
from mgpu_probes.inprocess.probe_context import ProbeContext
from mgpu_probes.inprocess.step_engine import Steps
from mgpu_probes.inprocess.step_marks import (
    Mark,
    backward_ended,
    fetch_found_end,
    fetched,
    loader_started,
    loader_starts,
    pause_begins,
    pause_ends,
)

from mgpu_doctor.recording.box import read_box
from mgpu_doctor.recording.records import Array

MICROSECOND = 1_000
INTERVAL, FIRST = step_sampling.INTERVAL, step_sampling.FIRST_STEPS


def asked(steps: Steps, now: int) -> None:
    steps.fetch_begins(7, now)


def updated(steps: Steps, now: int) -> None:
    steps.update_ends(now, 1)


class Switch:
    """Hooks that can rest."""

    def __init__(self) -> None:
        self.count: Callable[[], None] | None = None

    def counted_mark(self, marks: Sequence[Mark | None]) -> int | None:
        return list(marks).index(updated)

    def rest(self, count: Callable[[], None]) -> None:
        self.count = count

    def resume(self) -> None:
        self.count = None

    def phase_of(self, _: FrameType) -> int:
        return layout.BACKWARD


class Loop:
    """A training loop of one rank on a simulated clock."""

    def __init__(self, folder: Path, *, rests: bool) -> None:
        self.now = 1_000_000_000
        self.hooks = Switch()
        self.context = ProbeContext()
        self.context.clock = lambda: self.now
        self.context._start()
        self.context.on = True
        self.context.device_clock = "cpu"
        self.context.hook_switch = self.hooks if rests else None
        self.sequence = 0
        self.context.sequence = lambda: self.sequence
        self.context.open()
        self.folder = folder
        self.steps = 0

    def mark(self, mark: Mark, *data: Any, lasted: int = 10) -> None:
        """Sets a mark by a hook that may rest, after `lasted` microseconds."""
        self.now += lasted * MICROSECOND
        if self.hooks.count is None:
            self.context.mark(mark, self.now, data)

    def apart(self, mark: Mark, *data: Any, lasted: int = 10) -> None:
        """The same by a hook that never rests."""
        self.now += lasted * MICROSECOND
        self.context.mark(mark, self.now, data)

    def step(self, forward: int = 100) -> None:
        self.mark(asked)
        self.mark(fetched, 4, 0)
        self.mark(Steps.backward_begins, lasted=forward)
        self.sequence += 2
        self.mark(Steps.backward_waits)
        self.mark(backward_ended, 0.5)
        self.mark(Steps.update_begins)
        if self.hooks.count is None:
            self.mark(updated)
        else:
            self.now += 10 * MICROSECOND
            self.hooks.count()
        self.steps += 1

    def epoch_ends(self) -> None:
        if self.hooks.count is None:
            self.mark(asked)
            self.mark(fetch_found_end)
        else:
            self.now += 20 * MICROSECOND
            self.context.sampler.interrupt()
        self.apart(loader_starts)
        self.apart(loader_started, lasted=300)

    def saves(self) -> None:
        self.apart(pause_begins, layout.CHECKPOINT)
        self.apart(pause_ends, lasted=5_000)

    def end(self) -> Array:
        self.context.leave(0)
        (path,) = self.folder.glob("*.box")
        return read_box(path).steps.copy()


Make = Callable[..., Loop]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Loop]:
    def make(name: str = "loop", *, rests: bool = True) -> Loop:
        monkeypatch.setenv(BOXES_VARIABLE, str(tmp_path / name))
        return Loop(tmp_path / name, rests=rests)

    return make


def is_timed(records: Array) -> npt.NDArray[np.bool_]:
    known: npt.NDArray[np.bool_] = records["flags"] & layout.UNTIMED == 0
    assert (np.isnan(records["phases"][:, layout.FORWARD]) == ~known).all()
    return known


def test_of_short_steps_one_in_many_is_timed_and_all_are_counted(make: Make) -> None:
    loop = make()
    for _ in range(FIRST + 3000):
        loop.step()
    records = loop.end()
    timed = is_timed(records)
    assert records["step"].tolist() == list(range(FIRST + 3000))
    assert records["group_seq"].tolist() == list(range(2, 2 * FIRST + 6001, 2))
    assert (records["end_ns"][1:] - records["wall_ns"][1:] == records["end_ns"][:-1]).all()
    assert timed[:FIRST].all()
    # Weights are sampled every 500 steps, at a timed one.
    assert np.count_nonzero(records["flags"] & layout.OUT_OF_TURN) <= 3000 / 500 + 1
    assert timed[FIRST:].mean() == pytest.approx(1 / INTERVAL, abs=0.01)
    chosen = [is_sampled(int(key), INTERVAL) for key in records["group_seq"][FIRST - 1 : -1]]
    assert set(np.flatnonzero(chosen)) <= set(np.flatnonzero(timed[FIRST:]))
    forward = records["phases"][timed, layout.FORWARD]
    assert forward == pytest.approx(np.full(len(forward), 100e-6))
    assert records["samples"][timed].tolist() == [4] * int(timed.sum())


def test_ranks_that_differ_in_pace_time_the_same_steps(make: Make) -> None:
    quick, slow = make("quick"), make("slow")
    for number in range(FIRST + 128 * INTERVAL):
        quick.step()
        slow.step(forward=150 if number % 2 else 180)
    known = [is_timed(loop.end())[FIRST:] for loop in (quick, slow)]
    assert known[0].sum() > 100
    assert known[0].tolist() == known[1].tolist()


def test_a_single_long_step_is_recorded_and_brings_the_hooks_back(make: Make) -> None:
    loop = make()
    for _ in range(FIRST):
        loop.step()
    while loop.hooks.count is None:
        loop.step()
    long = loop.steps + 1
    loop.step()
    loop.step(forward=9_000)
    for _ in range(200):
        loop.step()
    records = loop.end()
    assert records["wall_ns"][long] == pytest.approx(9e6, abs=1e5)
    timed = is_timed(records)
    assert timed[long + 1]
    assert records["flags"][long + 1] == layout.OUT_OF_TURN
    assert not timed[long + 2 :].all()


def test_steps_that_turn_long_are_timed_in_full(make: Make) -> None:
    loop = make()
    for _ in range(FIRST + 100):
        loop.step()
    turned = loop.steps
    for _ in range(300):
        loop.step(forward=3_000)
    records = loop.end()
    assert is_timed(records)[turned + 1 :].all()
    settled = records["flags"][turned + 1 + step_sampling.SETTLED :]
    assert (settled == 0).all()
    assert len(records) == FIRST + 400


@pytest.mark.parametrize("seed", range(6))
def test_epochs_and_checkpoints_change_no_count(make: Make, seed: int) -> None:
    """The same loop is counted with hooks that rest and with hooks that do not."""
    totals = []
    for rests in (True, False):
        chance = random.Random(seed)
        loop = make(f"{rests}", rests=rests)
        for _ in range(FIRST + 1500):
            loop.step()
            if chance.random() < 0.01:
                chance.choice((loop.epoch_ends, loop.saves))()
        records = loop.end()
        assert records["step"].tolist() == list(range(FIRST + 1500))
        saved = float(np.nansum(records["phases"][:, layout.CHECKPOINT]))
        totals.append((saved, int(records["wall_ns"].sum()) // MICROSECOND))
        if rests:
            assert is_timed(records)[FIRST:].mean() < 0.5
    assert totals[0] == pytest.approx(totals[1], rel=1e-4)


def test_a_hang_at_rest_is_shown_by_the_stack(make: Make) -> None:
    loop = make()
    for _ in range(FIRST + 1):
        loop.step()
    while loop.hooks.count is None:
        loop.step()
    loop.step()
    words, sampler = loop.context.ledger.words, loop.context.sampler
    assert words[layout.NOW_PHASE // 8] == layout.OTHER | loop.steps << 8
    sampler.locate()
    assert words[layout.NOW_PHASE // 8] & 0xFF == layout.OTHER
    sampler.locate()
    assert words[layout.NOW_PHASE // 8] == layout.BACKWARD | loop.steps << 8


def test_a_collective_at_rest_is_shown_as_a_wait(make: Make) -> None:
    loop = make()
    while loop.hooks.count is None:
        loop.step()
    loop.apart(Steps.call_begins)
    assert loop.context.ledger.words[layout.NOW_PHASE // 8] == layout.WAIT | loop.steps << 8
    loop.apart(Steps.call_ends)
    assert loop.context.ledger.words[layout.NOW_PHASE // 8] & 0xFF == layout.OTHER
    assert loop.hooks.count is not None


def test_a_failure_of_the_probe_puts_the_hooks_back(make: Make) -> None:
    loop = make()
    while loop.hooks.count is None:
        loop.step()
    loop.context.fail(ValueError("trouble"))
    assert loop.hooks.count is None
