"""Allocations of graphs: worked by hand, and for any graph all memory is freed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mgpu_doctor.analysis.memory.liveness import Held, Node, Order, Use, build_stream
from mgpu_doctor.analysis.memory.stream import Allocated, Freed, Kind, Phase, Stream

WEIGHT = Held("weight", 100, Kind.WEIGHTS)


def node(
    use: Use,
    *inputs: int,
    size: int = 100,
    after: tuple[int, ...] = (),
    held: int | None = None,
    name: str = "",
) -> Node:
    """Of one output, which takes the first output of its inputs."""
    given = tuple((number, 0) for number in inputs)
    return Node(name, use, given, after, (size,), Kind.TEMPORARY, Phase.FORWARD, held)


def peak(made: Stream) -> int:
    now = most = 0
    sizes: dict[int, int] = {}
    for event in made.events:
        if isinstance(event, Allocated):
            sizes[event.block] = event.size
            now += event.size
        else:
            now -= sizes[event.block]
        most = max(most, now)
    return most


def played(*nodes: Node, held: tuple[Held, ...] = (), order: Order = Order.WRITTEN) -> Stream:
    return build_stream(nodes, held, samples=1, parameters=0, order=order)


def test_a_buffer_lives_until_its_last_user_has_run() -> None:
    chain = [node(Use.MAKES), node(Use.MAKES, 0), node(Use.MAKES, 1), node(Use.MAKES, 2)]
    assert peak(played(*chain)) == 200
    assert peak(played(*chain, node(Use.MAKES, 0, 3))) == 300  # the first one is needed last


def test_what_is_computed_in_place_takes_nothing_more() -> None:
    chain = (node(Use.MAKES), node(Use.REUSES, 0), node(Use.REUSES, 1))
    assert peak(played(*chain)) == 100
    assert peak(played(*chain, node(Use.MAKES, 0, size=1))) == 200  # somebody still needs it
    assert peak(played(node(Use.MAKES), node(Use.REUSES, 0, size=50))) == 150


def test_another_name_keeps_the_buffer() -> None:
    nodes = (node(Use.MAKES), node(Use.PASSES, 0), node(Use.MAKES), node(Use.MAKES, 1, 2))
    made = played(*nodes)
    assert sum(isinstance(event, Allocated) for event in made.events) == 3
    assert peak(made) == 300


def test_a_variable_stays_and_is_changed_in_place() -> None:
    nodes = (
        node(Use.READS, held=0),
        node(Use.MAKES, 0),
        node(Use.UPDATES, 1, after=(0,), held=0, size=0),
    )
    made = played(*nodes, held=(WEIGHT,))
    assert made.steps == (1,)
    assert peak(made) == 200
    assert _left(made) == [WEIGHT.size]


def test_a_variable_that_somebody_still_needs_is_changed_in_a_copy() -> None:
    nodes = (
        node(Use.READS, held=0),
        node(Use.MAKES, size=10),
        node(Use.UPDATES, 1, after=(0,), held=0, size=0),
        node(Use.MAKES, 0, after=(2,), size=1),
    )
    made = played(*nodes, held=(WEIGHT,))
    assert peak(made) == 210
    assert _left(made) == [WEIGHT.size]


def test_a_variable_can_take_over_what_was_computed() -> None:
    nodes = (node(Use.MAKES), node(Use.ASSIGNS, 0, held=0, size=0), node(Use.READS, held=0))
    made = played(*nodes, held=(WEIGHT,))
    assert peak(made) == 200
    assert _left(made) == [100]


def test_the_order_is_that_in_which_operations_become_ready_or_were_written() -> None:
    """Two arms: side by side both hold their first buffer, one after the other only one."""
    arms = [
        node(Use.MAKES, size=10), node(Use.MAKES, 0), node(Use.MAKES, 1, size=1),
        node(Use.MAKES, size=10), node(Use.MAKES, 3), node(Use.MAKES, 4, size=1),
    ]  # fmt: skip
    assert peak(played(*arms, order=Order.WRITTEN)) == 110
    assert peak(played(*arms, order=Order.BREADTH)) == 210


def test_a_circle_is_refused() -> None:
    with pytest.raises(ValueError, match="circle"):
        played(node(Use.MAKES, 1), node(Use.MAKES, 0))


def _left(made: Stream) -> list[int]:
    """Bytes of each block that is there after the step."""
    freed = {event.block for event in made.events if isinstance(event, Freed)}
    taken = [event for event in made.events if isinstance(event, Allocated)]
    return [event.size for event in taken if event.block not in freed]


@st.composite
def graphs(draw: st.DrawFn) -> tuple[Node, ...]:
    nodes: list[Node] = []
    for number in range(draw(st.integers(1, 25))):
        use = draw(st.sampled_from(list(Use)))
        earlier = st.integers(0, number - 1) if number else st.nothing()
        inputs = tuple(draw(st.lists(earlier, max_size=3))) if number else ()
        held = 0 if use in (Use.READS, Use.UPDATES, Use.ASSIGNS) else None
        size = 0 if use in (Use.UPDATES, Use.ASSIGNS) else draw(st.sampled_from([0, 50, 100]))
        nodes.append(node(use, *inputs, size=size, held=held))
    return tuple(nodes)


@given(graphs(), st.sampled_from(Order))
def test_after_any_step_only_the_variable_is_left(nodes: tuple[Node, ...], order: Order) -> None:
    made = played(*nodes, held=(WEIGHT,), order=order)
    assert len(_left(made)) == 1
    alive: set[int] = set()
    for event in made.events:
        if isinstance(event, Allocated):
            assert event.block not in alive
            alive.add(event.block)
        else:
            alive.remove(event.block)
