"""The offset of a host's clock: what is measured, how wrong it may be, and what is put right."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mgpu_doctor.cluster.clock_offset import ASK_EVERY, DRIFT, ClockOffset
from tests.support.host_frames import NOW


class Pair:
    """This machine and a host whose clock is ahead by `ahead`."""

    def __init__(self, ahead: float) -> None:
        self.now = NOW
        self.ahead = ahead
        self.offset = ClockOffset(lambda: self.now)

    def exchange(self, there: float, back: float, kept: float = 0.0) -> None:
        """A question that takes `there`, waits `kept`, and whose answer takes `back`."""
        asked = self.now
        self.offset.ask(asked)
        arrived = self.now + there + self.ahead
        self.now += there + kept + back
        self.offset.answer(asked, arrived, arrived + kept)


@given(
    st.floats(-1e5, 1e5),
    st.floats(0, 2.0),
    st.floats(0, 2.0),
    st.floats(0, 5.0),
)
def test_the_error_covers_the_truth(ahead: float, there: float, back: float, kept: float) -> None:
    pair = Pair(ahead)
    pair.exchange(there, back, kept)
    assert pair.offset.ahead is not None
    assert pair.offset.error is not None
    assert abs(pair.offset.ahead - ahead) <= pair.offset.error + 1e-5
    assert pair.offset.error == pytest.approx((there + back) / 2, abs=1e-5)


def test_the_best_exchange_counts_until_it_is_old() -> None:
    pair = Pair(3.0)
    pair.exchange(0.001, 0.001)
    pair.now += ASK_EVERY
    pair.exchange(0.2, 0.0)
    assert pair.offset.ahead == pytest.approx(3.0, abs=1e-5)
    assert pair.offset.error == pytest.approx(0.001 + DRIFT * (ASK_EVERY + 0.2), rel=0.01)
    pair.now += 1e4
    pair.exchange(0.2, 0.0)
    assert pair.offset.ahead == pytest.approx(3.1, abs=1e-5)


def test_a_clock_that_was_set_is_measured_anew() -> None:
    pair = Pair(0.0)
    pair.exchange(0.001, 0.001)
    pair.ahead = 3600.0
    pair.now += ASK_EVERY
    pair.exchange(0.02, 0.02)
    assert pair.offset.ahead == pytest.approx(3600.0, abs=0.02)
    assert pair.offset.corrected == pytest.approx(3600.0, abs=0.02)


@pytest.mark.parametrize(
    ("ahead", "way", "corrected"),
    [(0.004, 0.001, 0.0), (0.006, 0.001, 0.006), (0.05, 0.03, 0.0), (-1.0, 0.03, -1.0)],
)
def test_what_is_put_right(ahead: float, way: float, corrected: float) -> None:
    pair = Pair(ahead)
    pair.exchange(way, way)
    assert pair.offset.corrected == pytest.approx(corrected, abs=1e-5)


def test_a_greeting_alone_shows_only_large_differences() -> None:
    for ahead, corrected in ((1.5, 0.0), (-1.5, 0.0), (3600.0, 3600.0)):
        offset = ClockOffset(lambda: NOW)
        offset.hear(NOW + ahead)
        assert (offset.ahead, offset.error, offset.corrected) == (None, None, corrected)


def test_answers_that_were_not_asked_for_are_ignored() -> None:
    pair = Pair(0.0)
    pair.offset.ask(NOW)
    pair.offset.answer(NOW + 1, NOW, NOW)
    pair.offset.answer(NOW, NOW + 5, NOW)
    assert pair.offset.ahead is None
    pair.offset.answer(NOW, NOW, NOW)
    pair.offset.answer(NOW, NOW + 9, NOW + 9)
    assert pair.offset.ahead == 0.0


def test_each_greeting_asks_for_a_question() -> None:
    offset = ClockOffset(lambda: NOW)
    assert not offset.is_new
    for _ in range(2):
        offset.hear(NOW)
        assert offset.is_new
        offset.ask(NOW)
        assert not offset.is_new


def test_an_answer_counts_although_another_question_has_followed() -> None:
    pair = Pair(2.0)
    pair.offset.ask(NOW)
    pair.now += 0.1
    pair.offset.ask(pair.now)
    pair.now += 0.1
    pair.offset.answer(NOW, NOW + 2.1, NOW + 2.1)
    assert pair.offset.ahead == pytest.approx(2.0)
    assert pair.offset.error == pytest.approx(0.1)
