"""The graphs on the screen: lines drawn once a frame, shown one by one."""

from __future__ import annotations

from rich.text import Text
from textual.events import Click, MouseScrollDown, MouseScrollUp, Resize
from textual.message import Message

from mgpu_doctor.live.frame import Frame
from mgpu_doctor.tui.drawn import DrawnLines
from mgpu_doctor.tui.filter.shown import gpus
from mgpu_doctor.tui.history.choice import Choice
from mgpu_doctor.tui.history.page import Drawn, draw
from mgpu_doctor.tui.history.subjects import Lane

NOTHING_YET = "Nothing was sampled yet."


class Graphs(DrawnLines):
    """Draws what is chosen of a frame's history."""

    class Wheel(Message):
        """The mouse wheel: the window shall be so many bases longer, with what is under the
        pointer, at a share of the width, where it is."""

        def __init__(self, by: int, share: float) -> None:
            super().__init__()
            self.by, self.share = by, share

    class Picked(Message):
        """A graph was clicked."""

        def __init__(self, lane: Lane) -> None:
            super().__init__()
            self.lane = lane

    def __init__(self) -> None:
        super().__init__()
        self._shown: tuple[Frame, Choice] | None = None
        self._drawn = Drawn([], [], 0)

    @property
    def most_scrolled(self) -> int:
        """Graphs that do not fit."""
        return self._drawn.most_scrolled

    def show(self, frame: Frame, choice: Choice) -> None:
        """Draw this from now on."""
        self._shown = frame, choice
        self._redraw()

    def on_resize(self, _event: Resize) -> None:
        self._redraw()

    def _redraw(self) -> None:
        if self._shown is None or not self.size.area:
            return
        frame, choice = self._shown
        if frame.history is None:
            self._drawn = Drawn([Text(NOTHING_YET)], [None], 0)
        else:
            troubles = ((host, one.index, one.trouble) for host, one in gpus(frame))
            reasons = {(host, index): why for host, index, why in troubles if why}
            self._drawn = draw(frame.history, choice, *self.size, reasons)
        self.put(self._drawn.lines)

    def on_click(self, event: Click) -> None:
        lane = self._drawn.lanes[event.y] if event.y < len(self._drawn.lanes) else None
        if lane is not None:
            self.post_message(self.Picked(lane))

    def on_mouse_scroll_up(self, event: MouseScrollUp) -> None:
        self._wheel(-1, event.x)

    def on_mouse_scroll_down(self, event: MouseScrollDown) -> None:
        self._wheel(1, event.x)

    def _wheel(self, by: int, x: int) -> None:
        margin = self._drawn.margin
        share = (x - margin) / max(1, self.size.width - margin)
        self.post_message(self.Wheel(by, max(0.0, min(1.0, share))))
