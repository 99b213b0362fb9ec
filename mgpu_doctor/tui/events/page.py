"""The events as lines: what is chosen of them, in a width and a height. Pure."""

from __future__ import annotations

import textwrap
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rich.text import Text

from mgpu_doctor.report import text
from mgpu_doctor.report.events.event import Event, Kind
from mgpu_doctor.tui.events.timeline import Timeline
from mgpu_doctor.tui.panels.parts import DIM, Column, cell, ends
from mgpu_doctor.tui.panels.said import MARKS

NOTHING = "Nothing that is told of here has happened yet."
NOT_OF_THESE = "Nothing of this kind has happened yet; 0 shows all."
HEAD = 2
"""Lines above the events."""
MOST_LINES = 3
"""Of one sentence."""
CLOCK, AGO, LONGEST_WHO = 8, 10, 20
DAY = 86400.0


@dataclass(frozen=True, slots=True)
class Choice:
    """What the person at the screen chose. `top`: the first event shown, which stays there when
    newer ones come; None: the newest."""

    only: frozenset[Kind] = frozenset()
    """Empty: all kinds."""
    top: Event | None = None

    def toggled(self, kind: Kind) -> Choice:
        return Choice(self.only ^ {kind})


@dataclass(frozen=True, slots=True)
class Drawn:
    lines: list[Text]
    first: int = 0
    """Place of the first event shown among those of the chosen kinds."""
    last: int = 0
    """Place of the one after the last that is shown whole."""


def chosen(known: Timeline, choice: Choice) -> Sequence[Event]:
    """The events of the chosen kinds."""
    if not choice.only:
        return known.events
    return [event for event in known.events if event.kind in choice.only]


def scrolled(known: Timeline, choice: Choice, to: int) -> Choice:
    """Begin with the event at a place."""
    events = chosen(known, choice)
    place = max(0, min(len(events) - 1, to))
    return replace(choice, top=events[place] if place > 0 else None)


def draw(known: Timeline, at: float, choice: Choice, width: int, height: int) -> Drawn:
    """`at`: the moment of the frame, seconds since the epoch."""
    events = chosen(known, choice)
    made = _head(known, choice, width)
    if not events:
        made.append(Text(NOT_OF_THESE if known.events else NOTHING, style=DIM))
    first = last = _place(events, choice.top)
    who = Column("", min(LONGEST_WHO, max((len(one.who) for one in events), default=0), width // 4))
    while last < len(events) and len(made) < height:
        lines = _lines(events[last], at, who, width)
        if len(made) + len(lines) > height and last > first:
            break
        made += lines
        last += 1
    for line in made:
        line.truncate(width, overflow="ellipsis")
    return Drawn([*made, *(Text() for _ in range(height - len(made)))][:height], first, last)


def _place(events: Sequence[Event], top: Event | None) -> int:
    """Where `top` is; one that has changed since is where its moment is."""
    if top is None:
        return 0
    if top in events:
        return events.index(top)
    later = (
        place
        for place, event in enumerate(events)
        if event.at is not None and top.at is not None and event.at <= top.at
    )
    return next(later, max(0, len(events) - 1))


def _head(known: Timeline, choice: Choice, width: int) -> list[Text]:
    left = Text("Events", style="bold cyan")
    many = len(known.events)
    of = f" of {many}" if choice.only else ""
    left.append(f"  {len(chosen(known, choice))}{of}, newest first", style=DIM)
    cut = f"{text.count(known.left_out, 'older one')} left out" if known.left_out else ""
    return [ends(left, Text(cut, style="yellow"), width), _kinds(known, choice, width)]


def _kinds(known: Timeline, choice: Choice, width: int) -> Text:
    """The kinds with their keys, as widely as they fit."""
    counts = Counter(event.kind for event in known.events)
    made = Text()
    for gap, counted in (("  ", True), (" ", True), (" ", False)):
        made = Text()
        for number, kind in enumerate(Kind, 1):
            many = f" {counts[kind] or '-'}" if counted else ""
            style = "bold reverse" if kind in choice.only else "" if counts[kind] else DIM
            made.append(f"{number} {kind.value}{many}", style=style).append(gap)
        made.rstrip()
        if made.cell_len <= width:
            break
    return made


def _lines(event: Event, at: float, who: Column, width: int) -> list[Text]:
    mark, style = MARKS[event.tone]
    made = Text.assemble(
        (f"{_clock(event.at, at):>{CLOCK}} {_ago(event.at, at):>{AGO}} ", DIM), (f"{mark} ", style)
    )
    made.append_text(cell(Text(event.who, style="bold"), who)).append(" " if who.width else "")
    indent = made.cell_len
    room = max(10, width - indent)
    parts = textwrap.wrap(event.sentence, room, max_lines=MOST_LINES, placeholder=" …") or [""]
    made.append(parts[0])
    return [made, *(Text(" " * indent + part) for part in parts[1:])]


def _clock(moment: float | None, at: float) -> str:
    if moment is None:
        return text.UNKNOWN
    near = abs(at - moment) < DAY / 2
    return time.strftime("%H:%M:%S" if near else "%b %d", time.localtime(moment))


def _ago(moment: float | None, at: float) -> str:
    """In one unit: `42 s ago`, `3 min ago`."""
    if moment is None:
        return ""
    passed = max(0.0, at - moment)
    units = ((DAY, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s"))
    size, unit = next((one for one in units if passed >= one[0]), units[-1])
    return f"{int(passed // size)} {unit} ago"
