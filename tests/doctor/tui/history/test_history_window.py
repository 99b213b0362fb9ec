"""The time window stays within the known history, and follows the newest values or stays."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mgpu_doctor.tui.screens.graph_selection import LEAST_SHOWN, LENGTHS, PAN, Window

NOW = 1.79e9
FIRST = NOW - 7200


def test_it_follows_the_present() -> None:
    assert Window(0).span(NOW) == (NOW - 60, NOW)
    assert Window(0).span(NOW + 5) == (NOW - 55, NOW + 5)


def test_it_shows_no_time_before_the_first_sample_but_some_seconds_at_least() -> None:
    assert Window(1).fitted(NOW, NOW - 100) == (NOW - 100, NOW)
    assert Window(1).fitted(NOW, NOW - 7) == (NOW - LEAST_SHOWN, NOW)
    assert Window(1).fitted(NOW, None) == Window(1).fitted(NOW, FIRST) == (NOW - 300, NOW)


def test_panned_back_it_stands_still_until_it_is_told_to_follow() -> None:
    back = Window(0).pan(-2, NOW, FIRST)
    assert back.span(NOW) == back.span(NOW + 5) == (NOW - 60 - 2 * PAN * 60, NOW - 2 * PAN * 60)
    assert back.follow().span(NOW) == (NOW - 60, NOW)
    assert back.pan(9, NOW, FIRST) == Window(0)


def test_it_goes_no_further_back_than_what_is_known() -> None:
    assert Window(0).pan(-1000, NOW, FIRST).span(NOW)[0] == FIRST
    assert Window(5).pan(-1, NOW, FIRST) == Window(5)
    assert Window(0).pan(-1, NOW, None) == Window(0)


def test_zooming_keeps_what_is_under_the_pointer() -> None:
    back = Window(1, NOW - 3600)
    start, _ = back.span(NOW)
    still = start + 0.25 * back.length
    near = back.zoom(-1, NOW, FIRST, 0.25)
    assert abs(near.span(NOW)[0] + 0.25 * near.length - still) < 1e-6


@given(
    st.lists(
        st.tuples(st.sampled_from(["pan", "zoom"]), st.integers(-9, 9), st.floats(0, 1)),
        max_size=20,
    ),
    st.floats(0, 40_000),
)
def test_never_beyond_the_present_nor_wholly_before_the_beginning(
    moves: list[tuple[str, int, float]], known: float
) -> None:
    window, first = Window(), NOW - known
    for what, by, share in moves:
        window = window.pan(by, NOW, first) if what == "pan" else window.zoom(by, NOW, first, share)
        start, stop = window.span(NOW)
        assert 0 <= window.base < len(LENGTHS)
        assert stop <= NOW
        assert stop - start == window.length
        assert window.end is None or start >= first - 1e-3
