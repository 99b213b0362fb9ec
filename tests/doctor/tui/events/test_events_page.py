"""The page of events at its usual sizes against golden files, at other sizes, and scrolled."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
from msgspec import structs

from mgpu_doctor.live.frame import Frame, Position
from mgpu_doctor.report.job_events import Kind, TimelineEvent
from mgpu_doctor.report.verdict import Tone
from mgpu_doctor.tui.screens.events_screen import Choice, Timeline, draw, scrolled, timeline
from tests.support.eventful_job import AT, EVENTFUL, START
from tests.support.screens import SIZES, check

EARLY = START + 400.0
REPLAYED = structs.replace(EVENTFUL, at=EARLY, replay=Position(START, AT, EARLY, 1.0, paused=False))
SOME = Choice(frozenset({Kind.GPUS, Kind.ERRORS}))
PAGES = {"all": (EVENTFUL, Choice()), "some": (EVENTFUL, SOME), "replay": (REPLAYED, Choice())}
MANY = Timeline(
    tuple(
        TimelineEvent(
            Kind.RANKS, AT - number, f"rank {number}", "joined " * (number % 40), Tone.INFO
        )
        for number in range(300)
    ),
    7,
)


@pytest.fixture(autouse=True)
def _in_utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def text(known: Timeline, at: float, choice: Choice, width: int, height: int) -> str:
    drawn = draw(known, at, choice, width, height)
    assert len(drawn.lines) == height
    assert max(line.cell_len for line in drawn.lines) <= width
    return "\n".join(line.plain.rstrip() for line in drawn.lines).rstrip() + "\n"


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("name", PAGES)
def test_page(name: str, size: tuple[int, int]) -> None:
    frame, choice = PAGES[name]
    shown = text(timeline(frame), frame.at, choice, *size)
    check(f"events-{name}", shown, size[0])


@pytest.mark.parametrize("size", [(1, 1), (5, 2), (20, 5), (40, 9), (300, 90)], ids=str)
def test_any_size_can_be_drawn(size: tuple[int, int]) -> None:
    for known in (timeline(EVENTFUL), MANY, Timeline()):
        for choice in (Choice(), SOME, scrolled(known, Choice(), 9) if known.events else Choice()):
            text(known, AT, choice, *size)


def test_what_is_left_out_is_reported() -> None:
    assert "7 older ones left out" in text(MANY, AT, Choice(), 80, 24)


def test_nothing_at_all_and_nothing_of_a_kind() -> None:
    assert "No events yet." in text(timeline(Frame(AT, "live")), AT, Choice(), 80, 24)
    chosen = Choice().toggled(Kind.COMPILING)
    assert "0 shows all" in text(MANY, AT, chosen, 80, 24)
    assert chosen.toggled(Kind.COMPILING) == Choice()


def test_page_by_page_every_event_is_seen_once() -> None:
    choice = Choice()
    seen: list[int] = []
    while True:
        drawn = draw(MANY, AT, choice, 80, 24)
        seen += range(drawn.first, drawn.last)
        if drawn.last == len(MANY.events):
            break
        choice = scrolled(MANY, choice, drawn.last)
    assert seen == list(range(300))


def test_what_is_read_stays_when_something_newer_happens() -> None:
    choice = scrolled(MANY, Choice(), 50)
    newer = TimelineEvent(Kind.ERRORS, AT + 1, "rank 9", "fell", Tone.CRITICAL)
    later = replace(MANY, events=(newer, *MANY.events))
    assert draw(later, AT + 1, choice, 80, 24).first == 51
    grown = replace(later, events=(*later.events[:51], *later.events[52:]))
    assert draw(grown, AT + 1, choice, 80, 24).first == 51
    assert draw(later, AT + 1, Choice(), 80, 24).first == 0


def test_scrolling_stays_within_the_events() -> None:
    assert scrolled(MANY, Choice(), -5) == Choice()
    assert scrolled(MANY, Choice(), 10_000).top == MANY.events[-1]
    assert scrolled(Timeline(), Choice(), 3) == Choice()
