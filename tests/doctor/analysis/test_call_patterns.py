"""The usual calls of ranks, and by how many calls a rank is shifted."""

from __future__ import annotations

import pytest

from mgpu_doctor.analysis.collectives.call_patterns import (
    Shift,
    Step,
    find_shift,
    habit,
    is_habit,
    last_known_step,
)
from mgpu_doctor.case.flight_records import Collective, Flight


def numbered(calls: str, first: int = 1) -> dict[int, str]:
    return dict(enumerate(calls, first))


@pytest.mark.parametrize(
    ("calls", "usual"),
    [
        ("abababab", 5),
        ("ababab", None),
        ("abababac", 5),
        ("acabacab", None),
        ("aabaabaabaab", 8),
        ("aabaabaab", None),
        (("a" * 8 + "b") * 5, 35),
        (("a" * 9 + "b") * 5, None),
        ("", None),
        ("a", None),
    ],
)
def test_what_followed_the_same_calls_three_times_is_usual(calls: str, usual: int | None) -> None:
    """Up to eight calls before it are compared."""
    assert habit(calls, len(calls) - 1) == usual


@pytest.mark.parametrize(
    ("calls", "sequence", "usual"),
    [("abababab", 12, True), ("abababac", 12, False), ("ababab", 10, False)],
)
def test_a_groups_call_is_usual_or_not(calls: str, sequence: int, usual: bool) -> None:
    assert is_habit(numbered(calls, 5), sequence) is usual


def called(calls: str) -> Flight:
    """A rank's calls, by the names of their operations, in one group."""
    return Flight(
        rank=0,
        source="dump",
        version="2.10",
        collectives=tuple(
            Collective(
                group="0",
                sequence=place,
                operation=name,
                inputs=((8,),),
                outputs=((8,),),
                dtypes=("Float",),
                state="scheduled",
                retired=False,
                created=float(place),
                site=("train.py", 1, "step"),
            )
            for place, name in enumerate(calls)
        ),
        groups={"0": (0, 1)},
        at=100.0,
        slack=0.0,
        lost=0,
    )


@pytest.mark.parametrize(
    ("calls", "step"),
    [
        ("abababab", (7, 5, False)),
        ("abababac", (7, 5, True)),
        ("abababacd", (7, 5, True)),
        ("ababababxx", (8, 6, True)),
        ("abababaxbcd", (9, 6, True)),
        ("abababaxyzuvwqrst", None),
        ("abc", None),
    ],
)
def test_the_last_call_before_it_that_strayed_from_habit(
    calls: str, step: tuple[int, int, bool] | None
) -> None:
    flight = called(calls)
    found = last_known_step(flight, flight.collectives[-1])
    if step is None or found is None:
        assert (step, found) == (None, None)
        return
    one, usual, strays = step
    assert found == Step(flight.collectives[one], flight.collectives[usual])
    assert found.strays is strays


def test_a_call_that_the_rank_does_not_hold_has_no_step() -> None:
    assert last_known_step(called("abababab"), called("b").collectives[0]) is None


LOOP = "abcde"


@pytest.mark.parametrize(
    ("mine", "shift"),
    [
        (LOOP * 4 + "bcde" + LOOP * 10, Shift(21, 1, 20, 24, 5)),
        (LOOP * 4 + "cde" + LOOP * 10, Shift(21, 2, 20, 24, 5)),
        (LOOP * 4 + "x" + LOOP * 10, Shift(21, -1, 20, 24, 5)),
        (LOOP * 4 + "xyz" + LOOP * 10, Shift(21, -3, 20, 24, 5)),
        (LOOP * 4 + "bcde", Shift(21, 1, 20, 4, 4)),
        (LOOP * 10, None),
        (LOOP * 4 + "abxde" + LOOP * 10, None),
    ],
)
def test_where_a_rank_left_calls_out_or_made_more(mine: str, shift: Shift | None) -> None:
    assert find_shift(numbered(mine), numbered(LOOP * 20)) == shift


def test_the_others_calls_go_on_as_they_always_did() -> None:
    theirs = numbered(LOOP * 5)
    assert find_shift(numbered(LOOP * 4 + "bcde" + LOOP * 5), theirs) == Shift(21, 1, 20, 24, 5)


def test_a_branch_of_one_rank_that_meets_again_is_no_shift() -> None:
    mine = "".join("abXde" for _ in range(12))
    assert find_shift(numbered(mine), numbered(LOOP * 12)) is None
