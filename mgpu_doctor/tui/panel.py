"""A panel on the screen: lines of text, drawn one by one. It sees frozen frames and nothing else.

Textual's table of cells is about ten times dearer to update than lines (64 rows, Textual 8.2).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from rich.text import Text
from textual.binding import Binding, BindingType
from textual.events import Click, Resize
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from mgpu_doctor.live.frame import Frame
from mgpu_doctor.tui.view import View

Draw = Callable[[Frame, int, View], list[Text]]


class Panel(ScrollView):
    """Shows what `draw` makes of the newest frame; hidden while that is nothing."""

    def __init__(self, draw: Draw, title: str = "", *, id: str) -> None:
        super().__init__(id=id)
        self._draw = draw
        self._title = title
        self._shown: tuple[Frame, View] | None = None
        self._strips: list[Strip] = []
        self.can_focus = bool(title)

    def show(self, frame: Frame, view: View) -> None:
        """Draw this from now on."""
        self._shown = frame, view
        self._redraw()

    def on_resize(self, _event: Resize) -> None:
        self._redraw()

    def _redraw(self) -> None:
        if self._shown is None:
            return
        width = self.scrollable_content_region.width or self.app.size.width
        lines = self._draw(*self._drawn_with(width))
        self._strips = [Strip(line.render(self.app.console), line.cell_len) for line in lines]
        self.display = bool(lines)
        self.border_title = self._title
        size = Size(width, len(lines))
        if self.virtual_size != size:
            self.virtual_size = size
            self.refresh(layout=True)
        else:
            self.refresh()

    def _drawn_with(self, width: int) -> tuple[Frame, int, View]:
        assert self._shown is not None
        frame, view = self._shown
        return frame, width, view

    def render_line(self, y: int) -> Strip:
        line = y + int(self.scroll_offset.y)
        width = self.scrollable_content_region.width
        if line >= len(self._strips):
            return Strip.blank(width, self.rich_style)
        return (
            self._strips[line]
            .adjust_cell_length(width, self.rich_style)
            .apply_style(self.rich_style)
        )


class FindingsPanel(Panel):
    """The panel in which a finding can be selected and opened."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "move(-1)", "previous finding", show=False),
        Binding("down", "move(1)", "next finding", show=False),
    ]

    class Moved(Message):
        """The selection shall move by `by`, or to `to`; `opened`: its details are wanted."""

        def __init__(self, by: int = 0, to: int | None = None, opened: bool = False) -> None:
            super().__init__()
            self.by, self.to, self.opened = by, to, opened

    def action_move(self, by: int) -> None:
        self.post_message(self.Moved(by=by))

    def on_click(self, event: Click) -> None:
        offset = event.get_content_offset(self)
        if offset is not None:
            line = offset.y + int(self.scroll_offset.y)
            self.post_message(self.Moved(to=line, opened=event.chain > 1))
