"""The step engine with loops of every shape, and a clock that the test controls."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from mgpu_probes.inprocess import layout
from mgpu_probes.inprocess.phase_ledger import Ledger
from mgpu_probes.inprocess.step_engine import Steps
from mgpu_probes.inprocess.step_segments import BACKWARD, CALLS, FETCHED, UPDATE, Step

TRAIN, VAL = 11, 12
D, G = 101, 102


class Loop:
    """A training loop as marks; every method takes `ms` of the fake clock."""

    def __init__(self, optimizers: bool = True) -> None:
        self.now = 1_000_000
        self.told: list[Step] = []
        self.steps = Steps(Ledger(self.now), self.told.append, lambda: (self.now, 0, 0, 0))
        self.steps.optimizers_exist = optimizers

    def idle(self, ms: int) -> None:
        self.now += ms * 1_000_000

    def fetch(
        self, ms: int = 1, loader: int = TRAIN, *, grad: bool = True, got: bool = True
    ) -> None:
        self.steps.fetch_begins(loader, self.now, training=grad)
        self.idle(ms)
        self.steps.fetch_ends(self.now, 4, 8, got=got)

    def forward(self, ms: int = 2, *, grad: bool = True) -> None:
        self.steps.forward_begins(self.now, training=grad)
        self.idle(ms)
        self.steps.forward_ends(self.now, training=grad)

    def backward(
        self, ms: int = 4, wait: int = 0, inside: Callable[[], None] | None = None
    ) -> None:
        self.steps.backward_begins(self.now)
        self.idle(ms)
        if inside:
            inside()
        self.idle(wait)
        self.steps.backward_ends(self.now, wait * 1_000_000)

    def gradient(self, ms: int = 1) -> None:
        self.steps.gradient_begins(self.now)
        self.idle(ms)
        self.steps.backward_ends(self.now)

    def update(self, ms: int = 1, optimizer: int = D) -> None:
        self.steps.update_begins(self.now)
        self.idle(ms)
        self.steps.update_ends(self.now, optimizer)

    def scaler(self, skip: bool, optimizer: int = D) -> None:
        self.steps.update_begins(self.now)
        if not skip:
            self.update(1, optimizer)
        self.steps.update_ends(self.now, optimizer, scaler=True)

    def call(self, site: int, ms: int = 3, *, sends: bool = False) -> None:
        self.steps.call_begins(self.now, sends=sends)
        self.idle(ms)
        self.steps.call_ends(self.now, ("train.py", site, "all_reduce"))

    def end(self) -> list[Step]:
        self.steps.leave()
        for step in self.told:
            assert sum(step.phases) == step.end - step.start
        for before, after in zip(self.told, self.told[1:], strict=False):
            assert after.start >= before.end
        return self.told


def phase(step: Step, name: str) -> float:
    return step.phases[layout.PHASES.index(name)] / 1e6


def test_a_gradient_that_adds_up_none_is_no_micro_batch() -> None:
    loop = Loop()
    for _ in range(4):
        loop.fetch()
        loop.forward()
        loop.gradient(3)
        loop.backward(4)
        loop.update()
    steps = loop.end()
    assert [step.backwards for step in steps] == [1] * 4
    assert {phase(step, "backward") for step in steps} == {7}


@pytest.mark.parametrize("accumulates", [True, False])
def test_a_loop_that_has_no_optimizer_but_gradients_has_its_steps(accumulates: bool) -> None:
    loop = Loop()
    for _ in range(8):
        loop.fetch()
        loop.forward()
        loop.backward() if accumulates else loop.gradient()
    assert [step.backwards for step in loop.end()] == [int(accumulates)] * 8


def test_a_loop_with_a_loader_and_a_wrapped_model() -> None:
    loop = Loop()
    loop.idle(500)
    for _ in range(3):
        for _ in range(5):
            loop.fetch(1)
            loop.idle(3)
            loop.forward(2)
            loop.idle(1)
            loop.backward(4, wait=5)
            loop.idle(1)
            loop.update(1)
            loop.idle(6)
        loop.fetch(0, got=False)
    steps = loop.end()
    assert len(steps) == 15
    usual = steps[2]
    assert {name: phase(usual, name) for name in layout.PHASES} == {
        "input": 1,
        "transfer": 0,
        "forward": 3,
        "backward": 4,
        "wait": 5,
        "communication": 0,
        "optimizer": 1,
        "checkpoint": 0,
        "evaluation": 0,
        "other": 10,
    }
    assert usual.samples == 4
    assert usual.tokens == 8
    assert usual.level == UPDATE


def test_without_a_module_the_time_between_batch_and_backward_is_forward() -> None:
    loop = Loop()
    for _ in range(6):
        loop.fetch()
        loop.idle(7)
        loop.backward()
        loop.update()
        loop.idle(2)
    steps = loop.end()
    assert len(steps) == 6
    assert phase(steps[3], "forward") == 7
    assert phase(steps[3], "other") == 2


def test_without_a_loader_a_turn_ends_with_its_update() -> None:
    loop = Loop()
    for _ in range(10):
        loop.idle(7)
        loop.backward()
        loop.update()
    steps = loop.end()
    assert len(steps) == 10
    assert [phase(step, "forward") for step in steps[1:]] == [7] * 9
    assert loop.steps.level == UPDATE


def test_gradient_accumulation_is_one_step() -> None:
    for fetches in (True, False):
        loop = Loop()
        for _ in range(6):
            for _ in range(4):
                if fetches:
                    loop.fetch()
                loop.idle(1)
                loop.backward()
            loop.update()
        steps = loop.end()
        assert [step.backwards for step in steps] == [4] * 6


def test_a_skipped_update_is_a_step_and_says_so() -> None:
    loop = Loop()
    for turn in range(6):
        loop.fetch()
        loop.backward()
        loop.scaler(skip=turn == 3)
    assert [step.skipped for step in loop.end()] == [turn == 3 for turn in range(6)]


def test_optimizers_inside_backward_end_a_turn_when_the_backward_pass_ends() -> None:
    loop = Loop()

    def one_a_parameter() -> None:
        for optimizer in range(1, 9):
            loop.update(1, optimizer)

    for _ in range(7):
        loop.fetch()
        loop.idle(2)
        loop.backward(4, inside=one_a_parameter)
    steps = loop.end()
    assert len(steps) == 7
    assert phase(steps[3], "optimizer") == 8
    assert phase(steps[3], "backward") == 4


@pytest.mark.parametrize("fetches", [True, False])
@pytest.mark.parametrize("wrapped", [True, False])
def test_two_optimizers_are_one_step_a_turn(fetches: bool, wrapped: bool) -> None:
    loop = Loop()
    for _ in range(12):
        if fetches:
            loop.fetch()
        for optimizer in (D, G):
            if wrapped:
                loop.forward()
            loop.idle(1)
            loop.backward()
            loop.update(1, optimizer)
    steps = loop.end()
    assert [step.backwards for step in steps] == [2] * 12


def test_critic_steps_several_times_a_batch() -> None:
    loop = Loop()
    for _ in range(9):
        loop.fetch()
        for optimizer in (D, D, D, G):
            loop.backward()
            loop.update(1, optimizer)
    assert [step.backwards for step in loop.end()] == [4] * 9


def test_many_updates_on_one_batch_are_many_steps() -> None:
    loop = Loop()
    loop.fetch()
    for _ in range(40):
        loop.idle(1)
        loop.backward()
        loop.update()
    assert len(loop.end()) == 40


def test_consecutive_updates_are_one() -> None:
    loop = Loop()
    for _ in range(5):
        loop.fetch()
        loop.backward()
        loop.update(1, D)
        loop.update(1, G)
    assert len(loop.end()) == 5


@pytest.mark.parametrize("grad", [True, False])
def test_validation_is_no_step_and_counts_as_evaluation(grad: bool) -> None:
    loop = Loop()
    for epoch in range(3):
        for _ in range(4):
            loop.fetch()
            loop.forward()
            loop.backward()
            loop.update()
        loop.fetch(0, got=False)
        if epoch < 2:
            for _ in range(3):
                loop.fetch(1, VAL, grad=grad)
                loop.forward(2, grad=False)
                loop.idle(1)
            loop.fetch(0, VAL, grad=grad, got=False)
    steps = loop.end()
    assert len(steps) == 12
    assert [phase(step, "evaluation") for step in steps if phase(step, "evaluation")] == [12, 12]
    assert [step.samples for step in steps] == [4] * 12


@pytest.mark.parametrize("forwards", [1, 2])
def test_two_loaders_that_feed_one_backward_pass_are_no_validation(forwards: int) -> None:
    loop = Loop()
    for _ in range(6):
        loop.fetch(5, VAL)
        if forwards == 2:
            loop.forward()
        loop.fetch(1)
        loop.forward()
        loop.backward()
        loop.update()
    loop.fetch(5, VAL)
    loop.fetch(0, got=False)
    steps = loop.end()[1:]  # the first may have looked at a batch for once
    assert len(steps) == 5
    assert {phase(step, "evaluation") for step in steps} == {0}
    assert {phase(step, "input") for step in steps} == {6}
    assert {step.samples for step in steps} == {8}


@pytest.mark.parametrize("seen", [True, False])
def test_a_batch_to_look_at_now_and_then_is_validation(seen: bool) -> None:
    loop = Loop()
    for turn in range(9):
        if turn % 3 == 2:
            loop.fetch(1, VAL)
            if seen:
                loop.forward(2, grad=False)
            loop.idle(2)
        loop.fetch()
        loop.forward()
        loop.backward()
        loop.update()
    steps = loop.end()
    assert [step.samples for step in steps] == [4] * 9
    assert sum(phase(step, "evaluation") for step in steps) >= 9


def test_one_batch_ahead_is_no_validation() -> None:
    loop = Loop()
    loop.fetch()
    for turn in range(6):
        loop.fetch(got=turn < 5)
        loop.forward()
        loop.backward()
        loop.update()
    steps = loop.end()
    assert len(steps) == 6
    assert sum(phase(step, "evaluation") for step in steps) == 0


def test_fetch_between_backward_and_update() -> None:
    loop = Loop()
    loop.fetch()
    for _ in range(8):
        loop.forward()
        loop.backward()
        loop.fetch()
        loop.update()
    steps = loop.end()
    assert len(steps) == 8
    assert sum(phase(step, "evaluation") for step in steps) == 0


def test_all_reduce_by_hand_without_an_optimizer() -> None:
    loop = Loop(optimizers=False)
    for _ in range(20):
        loop.fetch()
        loop.idle(2)
        loop.backward()
        for line in (30, 30, 30):
            loop.call(line)
        loop.idle(1)
    steps = loop.end()
    assert len(steps) == 20
    assert steps[5].level == BACKWARD
    assert phase(steps[5], "wait") == 9
    assert phase(steps[5], "forward") == 2


def test_all_reduce_by_hand_without_loader_and_optimizer() -> None:
    loop = Loop(optimizers=False)
    loop.call(1)
    for _ in range(20):
        loop.idle(2)
        loop.backward()
        loop.call(30)
        loop.idle(1)
    steps = loop.end()
    assert len(steps) == 20
    assert [step.collectives for step in steps] == [1] * 20


def test_loader_and_collective_alone() -> None:
    loop = Loop(optimizers=False)
    loop.call(1)
    for _ in range(9):
        loop.fetch()
        loop.idle(5)
        loop.call(30)
        loop.idle(1)
    loop.fetch(got=False)
    steps = loop.end()
    assert len(steps) == 9
    assert steps[0].level == FETCHED
    assert phase(steps[4], "forward") == 5


def test_recurring_collectives_alone() -> None:
    loop = Loop(optimizers=False)
    for site in (1, 2, 2, 2, 3):
        loop.call(site)
    for _ in range(20):
        loop.idle(5)
        loop.call(30)
        loop.idle(2)
        loop.call(31)
    steps = loop.end()
    assert len(steps) == 20
    assert {step.level for step in steps} == {CALLS}
    assert phase(steps[9], "wait") == 6
    assert phase(steps[9], "forward") == 7


@pytest.mark.parametrize("weights", [8, 300])
@pytest.mark.parametrize("optimizers", [False, True])
def test_collectives_before_a_loop_are_no_steps(weights: int, optimizers: bool) -> None:
    """A script adds up or checks each weight on all ranks, one call each, before it trains."""
    loop = Loop(optimizers)
    for _ in range(weights):
        loop.call(20, 1)
    for _ in range(12):
        loop.backward()
        for _ in range(weights):
            loop.call(30, 1)
        if optimizers:
            loop.update()
    assert [step.backwards for step in loop.end()] == [1] * 12


def test_collectives_alone_count_as_steps_once_they_have_lasted_a_second() -> None:
    loop = Loop(optimizers=False)
    emitted = []
    for _ in range(24):
        loop.idle(97)
        loop.call(30, 3)
        emitted.append(len(loop.told))
    assert emitted[:10] == [0] * 10
    assert emitted[10:] == [*range(11, 25)]
    assert len(loop.end()) == 24


def test_pipeline_stage_own_work_between_receive_and_send() -> None:
    loop = Loop()
    for _ in range(8):
        for _ in range(2):
            loop.call(10)
            loop.idle(5)
            loop.call(11, 1, sends=True)
        for _ in range(2):
            loop.call(12)
            loop.backward(4)
            loop.call(13, 1, sends=True)
        loop.update()
    steps = loop.end()
    assert len(steps) == 8
    assert phase(steps[4], "forward") >= 10
    assert phase(steps[4], "backward") == 8


def test_backward_only_then_an_optimizer_shows_up() -> None:
    loop = Loop(optimizers=False)
    for _ in range(10):
        loop.fetch()
        loop.backward()
    for _ in range(10):
        loop.fetch()
        loop.backward()
        loop.update()
    steps = loop.end()
    assert len(steps) == 20
    assert [step.level for step in steps] == [BACKWARD] * 10 + [UPDATE] * 10


def test_a_partial_turn_is_no_step() -> None:
    loop = Loop()
    for _ in range(3):
        loop.fetch()
        loop.backward()
        loop.update()
    loop.fetch()
    loop.idle(50)
    assert len(loop.end()) == 3


def test_an_optimizer_that_raises_does_not_derail() -> None:
    loop = Loop()
    for turn in range(5):
        loop.fetch()
        loop.backward()
        if turn == 2:
            loop.steps.update_begins(loop.now)
            loop.idle(1)
        else:
            loop.update()
    assert len(loop.end()) in (4, 5)


def test_closures_run_backward_inside_the_update() -> None:
    loop = Loop()
    for _ in range(5):
        loop.fetch()
        loop.steps.update_begins(loop.now)
        for _ in range(3):
            loop.forward()
            loop.backward()
        loop.steps.update_ends(loop.now, D)
    steps = loop.end()
    assert [step.backwards for step in steps] == [3] * 5
