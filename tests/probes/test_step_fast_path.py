"""The fast path emits the same steps as the engine alone, whatever the loop does."""

from __future__ import annotations

import random
from collections.abc import Callable
from math import nan

import pytest
from mgpu_probes.inprocess import layout
from mgpu_probes.inprocess.phase_ledger import Ledger
from mgpu_probes.inprocess.step_engine import DECIDING, Steps
from mgpu_probes.inprocess.step_fast_path import StepFastPath
from mgpu_probes.inprocess.step_marks import (
    PHASE_BEGINS,
    Mark,
    backward_ended,
    evaluation_fetch_begins,
    evaluation_forward_begins,
    evaluation_forward_ends,
    fetch_found_end,
    fetched,
    loader_started,
    loader_starts,
    pause_begins,
    pause_ends,
    scaler_update_begins,
    scaler_update_ends,
)
from mgpu_probes.inprocess.step_segments import Step

Event = tuple[Mark, tuple[float, ...]]
"""A mark and its data."""


def asks(loader: int) -> Mark:
    return lambda steps, now: steps.fetch_begins(loader, now)


def updates(optimizer: int) -> Mark:
    return lambda steps, now: steps.update_ends(now, optimizer)


def returns(site: int) -> Mark:
    return lambda steps, now: steps.call_ends(now, ("train.py", site, "all_reduce"))


ASKS = {loader: asks(loader) for loader in (11, 12)}
UPDATES = {optimizer: updates(optimizer) for optimizer in (101, 102)}
RETURNS = {site: returns(site) for site in (1, 2)}


def fetch(loader: int = 11) -> list[Event]:
    return [(ASKS[loader], ()), (fetched, (4, 8))]


FORWARD: list[Event] = [(Steps.forward_begins, ()), (Steps.forward_ends, ())]
BACKWARD: list[Event] = [
    (Steps.backward_begins, ()),
    (Steps.backward_waits, ()),
    (backward_ended, (0.5,)),
]
PENALTY: list[Event] = [(Steps.gradient_begins, ()), (backward_ended, (nan,))]
BACKWARD_ALONE: list[Event] = [(Steps.backward_begins, ()), (backward_ended, (nan,))]


def update(optimizer: int = 101) -> list[Event]:
    return [(Steps.update_begins, ()), (UPDATES[optimizer], ())]


def call(site: int) -> list[Event]:
    return [(Steps.call_begins, ()), (RETURNS[site], ())]


EVALUATED: list[Event] = [
    (evaluation_fetch_begins, (12,)),
    (fetched, (2, 0)),
    (evaluation_forward_begins, ()),
    (evaluation_forward_ends, ()),
]
AT_ITS_END: list[Event] = [(ASKS[11], ()), (fetch_found_end, ())]
OPENS: list[Event] = [(loader_starts, ()), (loader_started, ())]
SKIPPED: list[Event] = [(scaler_update_begins, ()), (scaler_update_ends, (101,))]
SAVES: list[Event] = [(pause_begins, (layout.CHECKPOINT,)), (pause_ends, ())]


def marked(phase: str, *inside: list[Event]) -> list[Event]:
    """A phase that the program marks itself, around what hooks see."""
    within = [event for events in inside for event in events]
    return [(PHASE_BEGINS[phase], ()), *within, (Steps.phase_ends, ())]


STEP: list[Event] = [(Steps.turn_ends, ())]

TURNS: dict[str, list[Event]] = {
    "marked by the program": [
        *marked("input"),
        *marked("forward"),
        *marked("wait"),
        *marked("optimizer"),
        *STEP,
    ],
    "marked around hooks": [
        *marked("input", fetch()),
        *marked("backward", BACKWARD, call(1)),
        *marked("optimizer", update()),
    ],
    "marked steps of hooks": [*fetch(), *FORWARD, *BACKWARD, *update(), *update(102), *STEP],
    "usual": [*fetch(), *FORWARD, *BACKWARD, *update()],
    "with a gradient's penalty": [*fetch(), *FORWARD, *PENALTY, *BACKWARD, *update()],
    "without a module": [*fetch(), *BACKWARD_ALONE, *update()],
    "without a loader": [*FORWARD, *BACKWARD, *update()],
    "backward alone": [*BACKWARD, *update()],
    "accumulating": [*([*fetch(), *FORWARD, *BACKWARD_ALONE] * 4), *update()],
    "two optimizers": [
        *fetch(),
        *FORWARD,
        *BACKWARD,
        *update(),
        *FORWARD,
        *BACKWARD,
        *update(102),
    ],
    "by hand": [*fetch(), *BACKWARD_ALONE, *call(1), *call(2), *update(), *call(1)],
    "calls": [*call(1), *call(2), *call(1)],
    "no optimizer": [*fetch(), *FORWARD, *BACKWARD],
    "evaluating": [*fetch(), *FORWARD, *BACKWARD, *update(), *EVALUATED],
    "two loaders": [*fetch(12), *fetch(), *BACKWARD, *update()],
    "many updates a batch": [*fetch(), *([*BACKWARD, *update()] * 3)],
}
INTERRUPTIONS = (
    EVALUATED,
    marked("evaluation", EVALUATED),
    marked("checkpoint", SAVES),
    STEP,
    [*AT_ITS_END, *OPENS],
    SKIPPED,
    SAVES,
    fetch(12),
    call(2),
    FORWARD,
    update(),
)


class Both:
    """The same marks for an engine behind the fast path and for one that stands alone."""

    def __init__(self) -> None:
        self.now = 1_000
        self.fast, self.alone = list[Step](), list[Step]()
        self.fast_path = StepFastPath(
            Ledger(self.now), self.fast.append, lambda: (self.now, 0, 0, 0)
        )
        self.engine = Steps(Ledger(self.now), self.alone.append, lambda: (self.now, 0, 0, 0))
        self.fast_path.engine().optimizers_exist = self.engine.optimizers_exist = True

    def play(self, events: list[Event], lasting: Callable[[], int]) -> None:
        for mark, data in events:
            self.now += lasting()
            self.fast_path.mark(mark, self.now, data)
            mark(self.engine, self.now, *data)

    def agree(self) -> None:
        self.fast_path.engine().leave()
        self.engine.leave()
        assert list(map(timeless, self.fast)) == list(map(timeless, self.alone))


def timeless(step: Step) -> str:
    """All but the counters: of a turn that is broken off they are read when it is."""
    return repr(step._replace(before=(), after=()))


@pytest.mark.parametrize("name", TURNS)
def test_equal_turns(name: str) -> None:
    both = Both()
    chance = random.Random(name)
    for _ in range(100):
        both.play(TURNS[name], lambda: chance.randrange(1_000))
    both.agree()
    assert len(both.alone) > 90


@pytest.mark.parametrize("seed", range(60))
def test_turns_of_all_kinds_with_interruptions_anywhere(seed: int) -> None:
    both = Both()
    chance = random.Random(seed)
    longest = chance.choice((1, 3, 1_000))

    def lasting() -> int:
        return chance.randrange(longest)

    for _ in range(12):
        turn = chance.choice(list(TURNS.values()))
        for _ in range(chance.randrange(40)):
            if chance.random() < 0.02:
                at = chance.randrange(len(turn) + 1)
                both.play(turn[:at] + chance.choice(INTERRUPTIONS) + turn[at:], lasting)
            elif chance.random() < 0.01:
                both.play(turn[: chance.randrange(len(turn))], lasting)
            else:
                both.play(turn, lasting)
    both.agree()


@pytest.mark.parametrize("name", ["usual", "without a module", "accumulating", "by hand"])
def test_the_engine_is_not_asked_on_the_fast_path(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = Both()
    for _ in range(200):
        both.play(TURNS[name], lambda: 1)
    asked: list[int] = []
    begins = Steps.fetch_begins

    def counted(steps: Steps, loader: int, now: int, *, training: bool = True) -> None:
        asked.append(loader)
        begins(steps, loader, now, training=training)

    monkeypatch.setattr(Steps, "fetch_begins", counted)
    before = len(both.fast)
    for _ in range(10):
        both.play(TURNS[name], lambda: 1)
    mine = len(asked)
    assert len(both.fast) == before + 10
    fetches = sum(mark is ASKS[11] for mark, _ in TURNS[name])
    assert mine == 10 * fetches  # those of the engine that stands alone, and no other
    assert [step.before for step in both.fast[-9:]] == [step.after for step in both.fast[-10:-1]]
    assert both.fast[-1] == both.alone[-1]


def test_every_attribute_of_the_engine_is_known_to_decide_or_not() -> None:
    """One that is forgotten would let the fast path repeat a turn that means something else."""
    times_and_owners = {"emit", "facts", "ledger", "now", "pieces", "training"}
    engine = Steps(Ledger(0), lambda _: None)
    assert vars(engine).keys() == {*DECIDING, *times_and_owners}
