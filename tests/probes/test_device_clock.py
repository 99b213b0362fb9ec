"""Phases on the device's clock, against the truth of a simulated device."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mgpu_probes.inprocess import layout
from mgpu_probes.inprocess.device_clock import (
    FREE_NS,
    MOST_EVENTS,
    DeviceStep,
    DeviceTimer,
    is_sampled,
)
from mgpu_probes.inprocess.phase_ledger import Ledger
from mgpu_probes.inprocess.step_engine import Steps
from mgpu_probes.inprocess.step_fast_path import StepFastPath
from mgpu_probes.inprocess.step_marks import Mark, backward_ended, fetched
from mgpu_probes.inprocess.step_segments import Step

from tests.support.simulated_gpu import MS, SimulatedGpu, Training, data_parallel, run_together


def asked(steps: Steps, now: int) -> None:
    steps.fetch_begins(7, now)


def updated(steps: Steps, now: int) -> None:
    steps.update_ends(now, 3)


MARKS: dict[str, Mark] = {
    "fetch_begins": asked,
    "fetch_ends": fetched,
    "forward_begins": Steps.forward_begins,
    "forward_ends": Steps.forward_ends,
    "backward_begins": Steps.backward_begins,
    "backward_waits": Steps.backward_waits,
    "backward_ends": backward_ended,
    "update_begins": Steps.update_begins,
    "update_ends": updated,
}


class Rank:
    """A simulated GPU with the engine and the timer of the probe."""

    def __init__(self, **gpu: Any) -> None:
        self.gpu = SimulatedGpu(**gpu)
        self.host_steps: list[Step] = []
        self.device_steps: list[DeviceStep] = []
        self.engine = StepFastPath(Ledger(self.gpu.host), self.reported, lambda: (0, 0, 0, 0))
        self.timer = DeviceTimer(
            self.gpu,
            self.engine,
            self.device_steps.append,
            {Steps.backward_begins},
            host_clock=self.gpu.clock,
        )

    def mark(self, name: str, data: tuple[Any, ...] = ()) -> None:
        now = self.gpu.host
        self.timer.mark(MARKS[name], data, now)
        self.engine.mark(MARKS[name], now, data)

    def reported(self, step: Step) -> None:
        number = len(self.host_steps)
        self.host_steps.append(step)
        self.timer.turn_ended(number, step.end - step.start, number, step.end)


def train(job: Training, ranks: int = 2, **gpu: Any) -> list[Rank]:
    made = [Rank(**gpu) for _ in range(ranks)]
    run_together(
        [(r.gpu, data_parallel(r.gpu, r.mark, job, number)) for number, r in enumerate(made)],
        moving=MS // 2,
    )
    return made


def medians(rank: Rank) -> dict[str, float]:
    """Phase -> median ms of its timed steps."""
    assert len(rank.device_steps) >= 10
    steps = sorted(rank.device_steps)[5:]
    middle = len(steps) // 2
    return {
        phase: sorted(step.phases[at] for step in steps)[middle] / MS
        for at, phase in enumerate(layout.PHASES)
    }


def test_phases_are_those_of_the_device() -> None:
    for rank in train(Training()):
        seen = medians(rank)
        assert seen["forward"] == pytest.approx(10, abs=0.05)
        assert seen["backward"] == pytest.approx(20, abs=0.05)
        assert seen["wait"] == pytest.approx(0.5, abs=0.05)
        assert seen["optimizer"] == pytest.approx(4, abs=0.05)
        assert seen["input"] == pytest.approx(0, abs=0.01), "the queued work hides the loader"
        for step in rank.device_steps:
            assert sum(step.phases) == step.wall


@pytest.mark.parametrize("phase", ["forward", "backward", "optimizer"])
def test_a_slow_rank_works_longer_and_the_others_wait_as_long(phase: str) -> None:
    job = Training(slow={1: {phase: 3 * MS}})
    innocent, slow = train(job)
    mine, theirs = medians(innocent), medians(slow)
    assert theirs[phase] - mine[phase] == pytest.approx(3, abs=0.1)
    assert mine["wait"] - theirs["wait"] == pytest.approx(3, abs=0.1)


@pytest.mark.parametrize("run_ahead", [1, 30, 1024])
@pytest.mark.parametrize("reads_loss", [False, True])
def test_a_slow_loader_is_seen_only_where_the_device_stood_still(
    run_ahead: int, reads_loss: bool
) -> None:
    """12 ms more for a batch are hidden by 34 ms of queued work, unless the host waits for the
    device in every step or may queue nothing."""
    job = Training(slow={1: {"input": 12 * MS}}, reads_loss=reads_loss)
    innocent, slow = train(job, run_ahead=run_ahead)
    stalls = 13 if reads_loss or run_ahead == 1 else 0
    assert medians(slow)["input"] == pytest.approx(stalls, abs=0.2)
    assert medians(innocent)["wait"] == pytest.approx(max(0.5, stalls - 1), abs=1)
    assert medians(slow)["wait"] == pytest.approx(0.5, abs=0.1)


@given(
    st.integers(1, 1024),
    st.integers(1, 60),
    st.integers(1, 60),
    st.integers(0, 20),
    st.booleans(),
)
def test_phases_add_up_to_the_time_of_the_device(
    run_ahead: int, operations: int, milliseconds: int, loader: int, reads_loss: bool
) -> None:
    job = Training(
        steps=40,
        operations=operations * 3,
        forward=milliseconds * MS,
        input=loader * MS,
        reads_loss=reads_loss,
    )
    for rank in train(job, run_ahead=run_ahead):
        assert rank.timer.dropped == 0
        rank.gpu.synchronize()  # the host may be ahead of its device by all of the job
        rank.timer.finish()
        assert rank.device_steps
        for step in rank.device_steps:
            assert sum(step.phases) == step.wall
        assert rank.gpu.used <= MOST_EVENTS


def test_nothing_is_recorded_or_asked_while_a_graph_is_captured() -> None:
    rank = Rank(run_ahead=60)

    def mark(name: str, data: tuple[Any, ...] = ()) -> None:
        rank.gpu.capturing = 20 <= len(rank.host_steps) < 40
        rank.mark(name, data)

    run_together([(rank.gpu, data_parallel(rank.gpu, mark, Training(), 0))], moving=0)
    timed = {step.record for step in rank.device_steps}
    assert timed & set(range(5, 20))
    assert timed & set(range(45, 60))
    assert not timed & set(range(22, 40))


def test_running_out_of_events_costs_the_turn_and_nothing_else() -> None:
    for rank in train(Training(), most_events=20):
        assert rank.timer.dropped
        assert rank.device_steps
        assert rank.gpu.used <= 20


@given(st.integers(1, 400), st.integers(0, 60), st.booleans())
def test_how_far_the_host_was_ahead(run_ahead: int, loader: int, reads_loss: bool) -> None:
    rank, truth = Rank(run_ahead=run_ahead), list[int]()

    def mark(name: str, data: tuple[Any, ...] = ()) -> None:
        if name == "backward_begins":
            truth.append(max(0, rank.gpu.compute - rank.gpu.host))
        rank.mark(name, data)

    job = Training(input=loader * MS, reads_loss=reads_loss)
    run_together([(rank.gpu, data_parallel(rank.gpu, mark, job, 0))], moving=0)
    assert rank.device_steps
    for step in rank.device_steps:
        assert step.least_lead <= truth[step.record] <= step.most_lead
    if reads_loss:
        assert step.most_lead - step.least_lead < 2 * MS, "known where the host waits every step"


def test_timing_costs_no_more_than_it_may() -> None:
    """Here a step takes 1 ms, and an event 3 µs of the host: 2 µs per step may be spent."""
    rank = Rank()
    record = rank.gpu.record

    def costly() -> int | None:
        rank.gpu.work(3_000)
        return record()

    rank.gpu.record = costly  # type: ignore[method-assign]
    job = Training(steps=8000, input=0, forward=300_000, backward=600_000, optimizer=100_000)
    job = replace(job, operations=3)
    run_together([(rank.gpu, data_parallel(rank.gpu, rank.mark, job, 0))], moving=0)
    assert rank.timer.interval == 16
    assert rank.timer.spent_ns <= FREE_NS + 8000 * 2 * 2_000
    assert len(rank.device_steps) >= 8000 / 16 / 2


@pytest.mark.parametrize("at", [5, 300])
def test_a_hiccup_of_the_host_costs_no_timed_turns(at: int) -> None:
    """The thread is taken off its core for 40 ms while it records one event."""
    rank = Rank()
    record, calls = rank.gpu.record, iter(range(100_000))

    def interrupted() -> int | None:
        rank.gpu.work(40 * MS if next(calls) == at else 0)
        return record()

    rank.gpu.record = interrupted  # type: ignore[method-assign]
    job = Training(steps=200, reads_loss=True)
    run_together([(rank.gpu, data_parallel(rank.gpu, rank.mark, job, 0))], moving=0)
    assert rank.timer.spent_ns > FREE_NS
    assert rank.timer.interval == 1
    assert len(rank.device_steps) >= 195


@given(st.integers(0, 2**40), st.integers(1, 9))
def test_all_ranks_time_the_same_steps(first: int, advance: int) -> None:
    keys = range(first, first + 4096 * advance, advance)
    chosen = {power: {key for key in keys if is_sampled(key, 1 << power)} for power in range(7)}
    for power in range(6):
        assert chosen[power + 1] <= chosen[power]
    assert chosen[0] == set(keys)
    assert 30 <= len(chosen[6]) <= 110
