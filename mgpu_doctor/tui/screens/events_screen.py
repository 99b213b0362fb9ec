"""The screen with events, latest first."""

from __future__ import annotations

import math
import textwrap
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from msgspec import structs
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.events import MouseScrollDown, MouseScrollUp, Resize
from textual.message import Message

from mgpu_doctor.formatting import UNKNOWN, format_count
from mgpu_doctor.live.frame import Frame
from mgpu_doctor.report.event_timeline import MOST_EVENTS, Timeline, events_of
from mgpu_doctor.report.job_events import Kind, TimelineEvent
from mgpu_doctor.report.verdict import MARKS, STYLES
from mgpu_doctor.tui.keys import KeyHints
from mgpu_doctor.tui.panels.table_cells import DIM, Column, cell, ends
from mgpu_doctor.tui.screens.base import DrawnLines, FollowingScreen

NOTHING = "No events yet."
NOT_OF_THESE = "No events of this kind yet; 0 shows all."
HEAD = 2
"""Lines above the events."""
MOST_LINES = 3
"""Lines of one sentence."""
CLOCK, AGO, LONGEST_WHO = 8, 10, 20
DAY = 86400.0


@dataclass(frozen=True, slots=True)
class Choice:
    """What the person at the screen chose. `top`: the first event shown, which stays there when
    newer ones come; None: the newest."""

    only: frozenset[Kind] = frozenset()
    """Empty: all kinds."""
    top: TimelineEvent | None = None

    def toggled(self, kind: Kind) -> Choice:
        return Choice(self.only ^ {kind})


@dataclass(frozen=True, slots=True)
class Drawn:
    lines: list[Text]
    first: int = 0
    """Place of the first event shown among those of the chosen kinds."""
    last: int = 0
    """Place of the one after the last that is shown whole."""


def chosen(known: Timeline, choice: Choice) -> Sequence[TimelineEvent]:
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
    who = Column(
        "", min(LONGEST_WHO, max((len(event.who) for event in events), default=0), width // 4)
    )
    while last < len(events) and len(made) < height:
        lines = _lines(events[last], at, who, width)
        if len(made) + len(lines) > height and last > first:
            break
        made += lines
        last += 1
    for line in made:
        line.truncate(width, overflow="ellipsis")
    return Drawn([*made, *(Text() for _ in range(height - len(made)))][:height], first, last)


def _place(events: Sequence[TimelineEvent], top: TimelineEvent | None) -> int:
    """The index of the event `top`; if it has changed since, of its moment."""
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
    cut = f"{format_count(known.left_out, 'older one')} left out" if known.left_out else ""
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


def _lines(event: TimelineEvent, at: float, who: Column, width: int) -> list[Text]:
    mark, style = MARKS[event.tone], STYLES[event.tone]
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
        return UNKNOWN
    near = abs(at - moment) < DAY / 2
    return time.strftime("%H:%M:%S" if near else "%b %d", time.localtime(moment))


def _ago(moment: float | None, at: float) -> str:
    """In one unit: `42 s ago`, `3 min ago`."""
    if moment is None:
        return ""
    passed = max(0.0, at - moment)
    units = ((DAY, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s"))
    size, unit = next((unit for unit in units if passed >= unit[0]), units[-1])
    return f"{int(passed // size)} {unit} ago"


__all__ = ["MOST_EVENTS", "Timeline", "timeline"]


def timeline(frame: Frame) -> Timeline:
    """Returns the newest events of a frame. A replay shows no later events."""
    until = frame.at if frame.replay is not None else math.inf
    devices = frame.devices
    if devices is not None and frame.xids:  # a sample contains those since the previous one
        devices = structs.replace(devices, events=frame.xids)
    return events_of(frame.diagnosis, devices, frame.followed, until)


class Sheet(DrawnLines):
    """Says when its size is another one, and when the wheel turns."""

    class Sized(Message):
        """Requests a redraw."""

    class Wheel(Message):
        """Scrolls by this many events."""

        def __init__(self, by: int) -> None:
            super().__init__()
            self.by = by

    def on_resize(self, _event: Resize) -> None:
        self.post_message(self.Sized())

    def on_mouse_scroll_up(self, _event: MouseScrollUp) -> None:
        self.post_message(self.Wheel(-1))

    def on_mouse_scroll_down(self, _event: MouseScrollDown) -> None:
        self.post_message(self.Wheel(1))


class EventsScreen(FollowingScreen):
    """Opens over the screen. `show` brings it the newest frame, live or replayed."""

    BINDINGS: ClassVar[list[BindingType]] = [
        *(
            Binding(
                str(number),
                f"only('{kind.name}')",
                kind.value,
                show=False,
                tooltip=f"Only {kind.value}, and the other chosen kinds.",
            )
            for number, kind in enumerate(Kind, 1)
        ),
        Binding("0", "all", "all kinds, newest", tooltip="All kinds, from the newest."),
        Binding("up,k", "scroll(-1)", "newer", tooltip="Newer ones; home: the newest."),
        Binding("down,j", "scroll(1)", "older", tooltip="Older ones; end: the oldest."),
        Binding("pageup", "page(-1)", show=False),
        Binding("pagedown", "page(1)", show=False),
        Binding("home", "scroll(-1000000)", show=False),
        Binding("end", "scroll(1000000)", show=False),
        Binding("enter", "go", "go there", tooltip="Replay: go to the marked event, and pause."),
        Binding("escape,e,q", "close", "close"),
    ]

    class Wanted(Message):
        """Requests that the replay goes to this moment, in seconds since the epoch."""

        def __init__(self, at: float) -> None:
            super().__init__()
            self.at = at

    def __init__(self, frame: Frame | None = None, choice: Choice | None = None) -> None:
        super().__init__()
        self._frame = frame
        self._known: Timeline | None = None
        self._drawn = Drawn([])
        self.choice = choice or Choice()

    def compose(self) -> ComposeResult:
        yield Sheet()
        yield KeyHints()

    def show(self, frame: Frame) -> None:
        """The newest frame."""
        if self._frame is None or _news(self._frame, frame):
            self._known = None
        self._frame = frame
        self._draw()

    def action_only(self, kind: str) -> None:
        self._choose(self.choice.toggled(Kind[kind]))

    def action_all(self) -> None:
        self._choose(Choice())

    def action_scroll(self, by: int) -> None:
        self._scroll(self._drawn.first + by)

    def action_page(self, by: int) -> None:
        first, last = self._drawn.first, self._drawn.last
        self._scroll(last if by > 0 else first - max(1, last - first))

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        del parameters
        return action != "go" or (self._frame is not None and self._frame.replay is not None)

    def action_go(self) -> None:
        events = chosen(self._known, self.choice) if self._known is not None else ()
        at = events[self._drawn.first].at if self._drawn.first < len(events) else None
        if at is not None:
            self.app.post_message(self.Wanted(at))
            self.dismiss()

    def action_close(self) -> None:
        self.dismiss()

    def on_sheet_sized(self, _message: Sheet.Sized) -> None:
        self._draw()

    def on_sheet_wheel(self, message: Sheet.Wheel) -> None:
        self._scroll(self._drawn.first + message.by)

    def _scroll(self, to: int) -> None:
        if self._known is not None:
            self._choose(scrolled(self._known, self.choice, to))

    def _choose(self, choice: Choice) -> None:
        self.choice = choice
        self._draw()

    def _draw(self) -> None:
        if self._frame is None:
            return
        if self._known is None:
            self._known = timeline(self._frame)
        for sheet in self.query(Sheet):
            if sheet.size.area:
                self._drawn = draw(self._known, self._frame.at, self.choice, *sheet.size)
                lines = self._drawn.lines
                if self._frame.replay is not None and self._drawn.last > self._drawn.first:
                    lines[HEAD].stylize("reverse", 0, CLOCK)
                sheet.put(lines)


def _news(old: Frame, new: Frame) -> bool:
    """Returns whether something may have happened: a case of hundreds of ranks is only searched
    after a reload."""
    if new.diagnosis is None or new.diagnosis is not old.diagnosis:
        return True
    return new.followed != old.followed or bool(new.devices and new.devices.events)
