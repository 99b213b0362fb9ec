"""The page of events: which kinds, and from which one on, chosen by keys and mouse."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.events import MouseScrollDown, MouseScrollUp, Resize
from textual.message import Message
from textual.widgets import Footer

from mgpu_doctor.live.frame import Frame
from mgpu_doctor.report.events.event import Kind
from mgpu_doctor.tui.drawn import DrawnLines
from mgpu_doctor.tui.events.page import Choice, Drawn, draw, scrolled
from mgpu_doctor.tui.events.timeline import Timeline, timeline
from mgpu_doctor.tui.pages import FollowingScreen

KEYS = (
    ("1 … 7", "only events of this kind, and of others chosen so; again: no more"),
    ("0", "all kinds, and the newest on top"),
    ("up, down", "newer, older; so do page up and down and the wheel"),
    ("escape, e", "close"),
)
"""For the help page."""


class Sheet(DrawnLines):
    """Says when its size is another one, and when the wheel turns."""

    class Sized(Message):
        """The lines are to be drawn anew."""

    class Wheel(Message):
        """By so many events."""

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
                tooltip=f"Only {kind.value}, and what else is chosen so.",
            )
            for number, kind in enumerate(Kind, 1)
        ),
        Binding("0", "all", "all kinds, newest", tooltip="All kinds again, and the newest."),
        Binding("up,k", "scroll(-1)", "newer", tooltip="Newer ones; home: the newest."),
        Binding("down,j", "scroll(1)", "older", tooltip="Older ones; end: the oldest."),
        Binding("pageup", "page(-1)", show=False),
        Binding("pagedown", "page(1)", show=False),
        Binding("home", "scroll(-1000000)", show=False),
        Binding("end", "scroll(1000000)", show=False),
        Binding("escape,e,q", "close", "close"),
    ]

    def __init__(self, frame: Frame | None = None, choice: Choice | None = None) -> None:
        super().__init__()
        self._frame = frame
        self._known: Timeline | None = None
        self._drawn = Drawn([])
        self.choice = choice or Choice()

    def compose(self) -> ComposeResult:
        yield Sheet()
        yield Footer(compact=True)

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
                sheet.put(self._drawn.lines)


def _news(old: Frame, new: Frame) -> bool:
    """Whether something may have happened: a case of hundreds of ranks is looked through only when
    it was loaded anew."""
    if new.diagnosis is None or new.diagnosis is not old.diagnosis:
        return True
    return new.followed != old.followed or bool(new.devices and new.devices.events)
