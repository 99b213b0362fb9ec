"""A parameter server's turns: only updates that messages request."""

from __future__ import annotations

import pytest

from tests.probes.test_step_engine import G, Loop, phase


@pytest.mark.parametrize("receives", [False, True], ids=["in other threads", "itself"])
def test_each_update_that_a_message_asks_for_is_a_step(receives: bool) -> None:
    loop = Loop()
    for _ in range(10):
        loop.idle(5)
        if receives:
            loop.call(1)
        loop.update(2)
        loop.idle(1)
        loop.call(2, sends=True)
    assert loop.steps.only_updates
    steps = loop.end()
    assert len(steps) == 10
    assert [step.backwards for step in steps] == [0] * 10
    usual = steps[5]
    told = [phase(usual, name) for name in ("forward", "wait", "optimizer", "other")]
    assert told == [0, 6 if receives else 3, 2, 6]


def test_two_optimizers_of_a_server_are_one_step_a_turn() -> None:
    loop = Loop()
    for _ in range(10):
        loop.call(1)
        loop.update()
        loop.update(optimizer=G)
        loop.call(2, sends=True)
    assert len(loop.end()) == 10


def test_an_update_in_parts_is_one_step_where_gradients_are_computed() -> None:
    """As of DeepSpeed, which calls its optimizer once for each group of parameters."""
    loop = Loop()
    for _ in range(10):
        loop.forward()
        loop.backward()
        loop.call(1)
        loop.update()
        loop.call(2)
        loop.update()
        loop.call(3)
    assert not loop.steps.only_updates
    assert len(loop.end()) == 10
