"""The text about a straggler's causes: found, ruled out, not measured."""

from __future__ import annotations

import pytest

from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.analysis.stragglers.persistent_stragglers import Straggler
from mgpu_doctor.analysis.stragglers.straggler_causes import HOST, Cause
from mgpu_doctor.rules.slow.straggler_finding import (
    EXPLAINED,
    NAMES,
    describe_causes,
    list_ruled_out,
    list_unmeasured,
)
from tests.support.synthetic import Synthetic, synthetic_case

EXCESS = 0.020
STRAGGLER = Straggler(
    rank=1,
    excess=EXCESS,
    by_phase={},
    own=0.05,
    own_of_others=0.03,
    in_collectives=0.0,
    in_collectives_of_others=EXCESS,
    positive=1.0,
    since=None,
    steps=100,
    saved=0.4,
    step_seconds=0.05,
)


def measured(**shares: float | None) -> Measures:
    causes = tuple(
        Cause(name, None if share is None else share * EXCESS, share)
        for name, share in shares.items()
    )
    case = synthetic_case(Synthetic(steps=10))
    return Measures(case, stragglers=(STRAGGLER,), causes={1: causes})


def test_nothing_looked_at_nothing_reported() -> None:
    assert describe_causes(measured(), 1) == ""
    assert describe_causes(measured(gc=1.0), 0) == ""


@pytest.mark.parametrize(("share", "part"), [(1.4, "all of it"), (0.5, "10 ms of the 20 ms")])
def test_what_explains_it_and_how_much(share: float, part: str) -> None:
    assert describe_causes(measured(gc=share), 1) == f"Python's garbage collector explains {part}."


def test_ruled_out_and_not_measured() -> None:
    measures = measured(gc=0.01, data=0.0, checkpoint=0.1, idle=None)
    assert {*list_ruled_out(measures, 1)} == {"data", "gc", "checkpoint"}
    assert list_unmeasured(measures, 1) == ("idle",)
    assert describe_causes(measures, 1) == ""


def test_where_all_else_is_ruled_out_the_rank_computes() -> None:
    nothing = dict.fromkeys((*HOST, "idle"), 0.0)
    assert describe_causes(measured(**nothing), 1).startswith(
        "Its main thread computes all that time"
    )
    unknown = {**nothing, "idle": None}
    assert "computes" not in describe_causes(measured(**unknown), 1)


def test_every_cause_has_words() -> None:
    assert NAMES.keys() == EXPLAINED.keys()
