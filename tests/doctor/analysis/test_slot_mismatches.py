"""Which calls can be one collective, and which cannot."""

from __future__ import annotations

import pytest

from mgpu_doctor.analysis.collectives.collective_mismatch import Mismatch, compare_slots
from mgpu_doctor.case.flight_records import Collective

Shapes = tuple[tuple[int, ...], ...]


def call(
    operation: str,
    inputs: Shapes = (),
    outputs: Shapes = (),
    dtypes: tuple[str, ...] = ("Float",),
    line: int = 1,
) -> tuple[Collective, ...]:
    return (
        Collective(
            group="0",
            sequence=1,
            operation=operation,
            inputs=inputs,
            outputs=outputs,
            dtypes=dtypes,
            state="scheduled",
            retired=False,
            created=1.0,
            site=("train.py", line, "step"),
        ),
    )


ONE = {
    "another place in the code": (
        call("broadcast", ((8,),), ((8,),), line=1),
        call("broadcast", ((8,),), ((8,),), line=2),
    ),
    "another shape of one size": (
        call("all_reduce", ((2, 4),), ((2, 4),)),
        call("all_reduce", ((8,),), ((8,),)),
    ),
    "gathered on the root alone": (
        call("gather", ((4,),), ((4,), (4,)), ("Float", "Float", "Float")),
        call("gather", ((4,),), ()),
    ),
    "scattered from the root alone": (
        call("scatter", ((4,), (4,)), ((4,),)),
        call("scatter", (), ((4,),)),
    ),
    "unequal parts of all_to_all": (
        call("all_to_all", ((3,), (5,)), ((1,), (1,))),
        call("all_to_all", ((1,), (1,)), ((3,), (5,))),
    ),
    "unequal parts of all_to_all_single": (
        call("all_to_all_v_single", ((8, 2),), ((4, 2),)),
        call("all_to_all_v_single", ((2, 2),), ((6, 2),)),
    ),
    "unequal parts gathered": (
        call("all_gather", ((3,),), ((3,), (5,))),
        call("all_gather", ((5,),), ((3,), (5,))),
    ),
    "unequal parts reduced": (
        call("reduce_scatter", ((3,), (5,)), ((3,),)),
        call("reduce_scatter", ((3,), (5,)), ((5,),)),
    ),
    "sizes that are not told": (call("all_reduce", (), ()), call("all_reduce", ((8,),), ((8,),))),
    "types that are not told": (
        call("all_reduce", ((8,),), ((8,),), ()),
        call("all_reduce", ((8,),), ((8,),), ("Half",)),
    ),
    "an operation that nobody knows": (call("new_one", ((8,),)), call("new_one", ((9,),))),
    "coalesced, one of them still being filled": (
        call("_all_gather_base", ((4,),), ((8,),)) + call("coalesced"),
        call("_all_gather_base", ((4,),), ((8,),)),
    ),
}
NOT_ONE = {
    Mismatch.OPERATION: (call("all_reduce", ((8,),)), call("all_gather", ((8,),))),
    Mismatch.DTYPE: (
        call("all_reduce", ((8,),), ((8,),), ("Float", "Float")),
        call("all_reduce", ((8,),), ((8,),), ("Int", "Int")),
    ),
    Mismatch.SHAPE: (
        call("_all_gather_base", ((4,),), ((8,),)),
        call("_all_gather_base", ((5,),), ((10,),)),
    ),
}


@pytest.mark.parametrize("name", ONE)
def test_these_may_be_one_collective(name: str) -> None:
    one, other = ONE[name]
    assert compare_slots(one, other) is None
    assert compare_slots(other, one) is None


@pytest.mark.parametrize("kind", NOT_ONE)
def test_these_cannot_be(kind: Mismatch) -> None:
    one, other = NOT_ONE[kind]
    assert compare_slots(one, other) is kind
    assert compare_slots(other, one) is kind


@pytest.mark.parametrize("operation", ["all_reduce", "broadcast", "reduce", "_reduce_scatter_base"])
def test_where_all_must_bring_as_much(operation: str) -> None:
    assert compare_slots(call(operation, ((8,),)), call(operation, ((9,),))) is Mismatch.SHAPE


def test_the_second_of_coalesced_ones_counts_too() -> None:
    first = call("all_reduce", ((8,),), ((8,),))
    assert compare_slots(first + call("all_reduce", ((1,),)), first + call("all_reduce", ((2,),)))
