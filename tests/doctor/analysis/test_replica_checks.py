"""Which ranks had the same batches, and whose weights differ, by digests in the process
metadata."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from mgpu_doctor.analysis.structure.replica_checks import Replicas, compare
from mgpu_doctor.case.model import Rank
from tests.support.synthetic import make_rank

Rows = list[list[Any]]


def fed(*digests: str, loader: int = 0, epoch: int = 0) -> Rows:
    """An epoch of batches."""
    return [[loader, epoch, index, digest] for index, digest in enumerate(digests)]


def held(*values: str, step: int = 20, total: str = "2.5", shapes: str = "s") -> Rows:
    """Weights at steps 20, 40, …"""
    return [
        [step * at, 3 * step * at, step * at, f"{shapes}.{value}.{total}"]
        for at, value in enumerate(values, 1)
    ]


def ranks(*births: dict[str, Any]) -> list[Rank]:
    return [make_rank(number, [], birth=birth) for number, birth in enumerate(births)]


def compared(key: str, *rows: Rows) -> Replicas:
    return compare(ranks(*({key: row} for row in rows)))


def test_equal_batches_at_equal_places_are_alike() -> None:
    found = compared("batches", *[fed(*"abcdef")] * 3)
    assert found.same_batches == 1.0
    assert found.compared_batches == 6
    assert found.alike == ((0, 1, 2),)


def test_the_same_batches_in_another_order_are_not() -> None:
    found = compared("batches", fed(*"abcdef"), fed(*"fedcba"))
    assert found.same_batches == 0.0
    assert found.alike == ()


def test_pairs_that_share_are_distinguished() -> None:
    one, other = fed(*"abcd"), fed(*"wxyz")
    found = compared("batches", one, other, one, other, fed(*"klmn"))
    assert found.alike == ((0, 2), (1, 3))
    assert found.same_batches == pytest.approx(0.8)


def test_one_batch_that_differs_makes_ranks_unlike() -> None:
    found = compared("batches", fed(*"abcdefgh"), fed(*"abcdefgx"))
    assert found.alike == ()
    assert found.same_batches == pytest.approx(7 / 8)


@pytest.mark.parametrize(
    "rows",
    [fed(*"aaaaaaaa"), fed(*"abababab"), fed(*"abc"), []],
    ids=["constant", "two in turn", "three places", "none"],
)
def test_batches_that_tell_nothing_are_not_compared(rows: Rows) -> None:
    found = compared("batches", rows, rows)
    assert (found.same_batches, found.alike, found.repeats) == (None, (), None)


def test_loaders_are_matched_by_their_order_not_their_number() -> None:
    found = compared("batches", fed(*"abcd", loader=1), fed(*"abcd", loader=0))
    assert found.alike == ((0, 1),)


def test_epochs_that_repeat() -> None:
    again = [*fed(*"abcd"), *fed(*"abcd", epoch=1)]
    other = [*fed(*"wxyz"), *fed(*"zyxw", epoch=1)]
    assert compared("batches", again, again).repeats is True
    assert compared("batches", again, other).repeats is False
    assert compared("batches", fed(*"abcd"), fed(*"abcd")).repeats is None


def test_equal_weights() -> None:
    found = compared("weights", held(*"abc"), held(*"abc"))
    assert (found.compared_weights, found.diverged_at, found.factions) == (3, None, ())


def test_weights_differ_from_the_first_step_after_which_they_never_agree() -> None:
    found = compared("weights", held(*"abcd"), held(*"axyz", total="2.6"))
    assert (found.diverged_at, found.diverged_moments, found.compared_weights) == (40, 3, 4)
    assert found.factions == ((0,), (1,))
    assert found.distance == pytest.approx(0.1 / 2.6)


def test_weights_that_agree_again_have_not_diverged() -> None:
    found = compared("weights", held(*"abcd"), held(*"xyzd", total="2.6"))
    assert (found.diverged_at, found.compared_weights) == (None, 4)


def test_the_minority_is_distinguished() -> None:
    odd = held(*"xyz", total="9")
    found = compared("weights", held(*"abc"), held(*"abc"), odd, held(*"abc"))
    assert found.factions == ((0, 1, 3), (2,))


def test_who_left_the_others() -> None:
    stays, leaves = held(*"abc"), [*held(*"ab"), *held("x", total="2.9", step=60)]
    assert compared("weights", stays, leaves, stays).jumped == (1,)
    assert compared("weights", stays, leaves).jumped == ()
    assert compared("weights", stays, held(*"axy", total="2.9"), stays).jumped == (1,)
    assert compared("weights", stays, held(*"xyz", total="2.9"), stays).jumped == ()
    both = [*held(*"ab"), *held("y", total="2.2", step=60)]
    assert compared("weights", both, leaves).jumped == ()


def test_two_that_part_late_were_equal_before() -> None:
    leaves = [*held(*"ab"), *held("x", total="2.9", step=60)]
    assert compared("weights", held(*"abc"), leaves).were_equal
    assert not compared("weights", held(*"abc"), held(*"xyz", total="2.9")).were_equal
    off = [*held("a"), *held("x", total="2.500001", step=40), *held("y", total="2.9", step=60)]
    assert not compared("weights", held(*"abc"), off).were_equal


@pytest.mark.parametrize(
    "other",
    [
        held(*"xyz", total="2.500001"),
        held(*"xyz", total="9", shapes="t"),
        held(*"xyz", total="9", step=21),
        held(*"xyz", total="nan"),
        [[20, 60, 20, "nonsense"], [40, 120, 40, "1.2"], [60, 180, 60, "..."]],
    ],
    ids=["rounding", "other shapes", "other moments", "no numbers", "nonsense"],
)
def test_what_cannot_be_compared_is_not(other: Rows) -> None:
    assert compared("weights", held(*"abc"), other).diverged_at is None


def test_steps_that_were_reported_at_once_are_one_moment() -> None:
    late = [[20, 90, 30, "s.a.1"], [40, 90, 30, "s.a.1"]]
    apart = [[20, 90, 30, "s.b.2"], [40, 90, 30, "s.b.2"]]
    assert compared("weights", late, apart).diverged_moments == 1


@pytest.mark.parametrize(
    "birth", [{}, {"batches": "x", "weights": [[1]]}, {"weights": [[None] * 4]}]
)
def test_births_that_tell_nothing(birth: dict[str, Any]) -> None:
    assert compare(ranks(birth, birth)) == Replicas()
    nobody: Sequence[Rank] = ()
    assert compare(nobody) == Replicas()
