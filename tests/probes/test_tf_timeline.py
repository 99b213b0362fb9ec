"""Sorting the stamps of graphs into turns, without TensorFlow."""

from __future__ import annotations

from math import inf, isnan, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mgpu_probes.inprocess.frameworks.tensorflow import distribution_strategies
from mgpu_probes.inprocess.frameworks.tensorflow.stamp_timeline import (
    GRADIENTS,
    INPUT,
    LOSS,
    REDUCE_BEGINS,
    REDUCE_ENDS,
    SAMPLES,
    UPDATE,
    VALUE,
    Layout,
    Stamp,
    Turn,
    plan_turns,
    time_turns,
)

S = 1_000_000_000
OUTER: Layout = (Stamp(INPUT, 0, -1, 0), Stamp(SAMPLES, 0, -1, 1))


def inner(replica: int = 0, serial: int = 2) -> Layout:
    kinds = (LOSS, GRADIENTS, REDUCE_BEGINS, REDUCE_ENDS, VALUE)
    stamps = [Stamp(kind, 0, replica, serial + at) for at, kind in enumerate(kinds)]
    return (*stamps, Stamp(UPDATE, 0, replica, serial + len(kinds)))


def turns_of(
    *arrivals: tuple[Layout, list[float]], began: int = 0, ended: int = 9 * S
) -> list[Turn]:
    """The turns of a call whose graphs sent this, one after the other."""
    sent = [((layout,), values) for layout, values in arrivals]
    return time_turns(
        plan_turns(sent), [value for _, each in sent for value in each], began, ended, 0
    )


def test_stamps_of_two_graphs_are_one_turn_in_the_order_in_which_they_were_traced() -> None:
    arrivals = [(inner(), [3.0, 4.0, 4.1, 5.0, 0.7]), (OUTER, [2.0, 32.0])]
    (turn,) = turns_of(*arrivals, began=S)
    assert [kind for kind, _ in turn.moments] == [
        INPUT,
        LOSS,
        GRADIENTS,
        REDUCE_BEGINS,
        REDUCE_ENDS,
    ]
    assert [moment / S for _, moment in turn.moments] == pytest.approx([2.0, 3.0, 4.0, 4.1, 5.0])
    assert (turn.updates, turn.samples, turn.loss, turn.trains) == (True, 32, 0.7, True)


def test_the_last_replica_decides_and_losses_add_up() -> None:
    layout = (*inner(0, 2)[:5], *inner(1, 8))
    values = [1.0, 2.0, 2.0, 9.0, 0.25, 3.0, 6.0, 6.0, 9.0, 0.5]
    (turn,) = turns_of((layout, values))
    assert [moment / S for _, moment in turn.moments] == [3.0, 6.0, 6.0, 9.0]
    assert turn.loss == 0.75


def test_a_graph_that_ran_twice_is_two_turns() -> None:
    layout = inner()
    first, second = [1.0, 2.0, 2.0, 3.0, 0.5], [4.0, 5.0, 5.0, 6.0, 0.4]
    both = turns_of((layout, first), (layout, second))
    assert [one.loss for one in both] == [0.5, 0.4]
    assert [one.moments[-1][1] // S for one in both] == [3, 6]


def test_what_a_graph_sends_together_with_one_that_it_calls_is_taken_apart() -> None:
    once = plan_turns([((OUTER, inner()), [])])
    twice = plan_turns([((inner(), OUTER), [])])
    (turn,) = time_turns(once, [2.0, 32.0, 3.0, 4.0, 4.1, 5.0, 0.7], S, 9 * S, 0)
    (other,) = time_turns(twice, [3.0, 4.0, 4.1, 5.0, 0.7, 2.0, 32.0], S, 9 * S, 0)
    assert turn == other
    assert (turn.samples, turn.loss, len(turn.moments)) == (32, 0.7, 5)


def test_each_replica_is_known_by_its_last_gradients() -> None:
    layout = (*inner(0, 2)[:5], *inner(1, 8)[:5], Stamp(GRADIENTS, 1, 1, 20))
    (plan,) = plan_turns([((layout,), [])])
    assert plan.gradients == ((0, 1), (1, 10))


@pytest.mark.parametrize("loss", [nan, inf, -inf])
def test_a_loss_that_is_no_number_is_reported_as_such(loss: float) -> None:
    (turn,) = turns_of((inner(), [1.0, 2.0, 2.0, 3.0, loss]))
    assert turn.loss == inf


def test_without_a_value_the_loss_is_unknown() -> None:
    (turn,) = turns_of((inner()[:4], [1.0, 2.0, 2.0, 3.0]))
    assert isnan(turn.loss)


@given(st.lists(st.floats(allow_nan=True), min_size=5, max_size=5))
def test_moments_never_leave_their_call_nor_go_back(values: list[float]) -> None:
    (turn,) = turns_of((inner(), values), began=S, ended=2 * S)
    moments = [S, *(moment for _, moment in turn.moments), 2 * S]
    assert moments == sorted(moments)


CLUSTER = '"cluster": {"chief": ["a:1"], "worker": ["b:1", "c:1"], "ps": ["d:1"]}'


@pytest.mark.parametrize(
    ("config", "place"),
    [
        (f'{{{CLUSTER}, "task": {{"type": "worker", "index": 1}}}}', ("worker", 2, 3, 1)),
        (f'{{{CLUSTER}, "task": {{"type": "chief", "index": 0}}}}', ("chief", 0, 3, 1)),
        (f'{{{CLUSTER}, "task": {{"type": "ps", "index": 0}}}}', ("ps", -1, 3, 1)),
        (f'{{{CLUSTER}, "task": {{"type": "worker", "index": 9}}}}', None),
        (f'{{{CLUSTER}, "task": {{"type": "worker", "index": "x"}}}}', None),
        ('{"cluster": {"worker": 3}, "task": {"type": "worker", "index": 0}}', None),
        ('["worker"]', None),
        ("{bad", None),
        ("[" * 100_000, None),
        ("", None),
    ],
)
def test_the_place_in_a_cluster(
    monkeypatch: pytest.MonkeyPatch, config: str, place: tuple[str, int, int, int] | None
) -> None:
    monkeypatch.setenv("TF_CONFIG", config)
    assert distribution_strategies.read_tf_config() == place
