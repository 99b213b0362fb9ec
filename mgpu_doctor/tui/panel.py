"""A panel on the screen: lines of text, drawn as they are looked at. It sees frozen frames and
nothing else.

Textual's table of cells is about ten times dearer to update than lines (64 rows, Textual 8.2).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from rich.text import Text
from textual.binding import Binding, BindingType
from textual.events import Click, Resize
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from mgpu_doctor.live.frame import Frame
from mgpu_doctor.tui.panels.rows import Rows
from mgpu_doctor.tui.view import View

Draw = Callable[[Frame, int, View], Sequence[Text]]


class Panel(ScrollView):
    """Shows what `draw` makes of the newest frame; hidden while that is nothing. The head of `Rows`
    stays at the top, and its marked row is brought into view whenever it is another one."""

    def __init__(self, draw: Draw, title: str = "", *, id: str) -> None:
        super().__init__(id=id)
        self._draw = draw
        self.border_title = title
        self._shown: tuple[Frame, View] | None = None
        self._lines: Sequence[Text] = ()
        self._marked: int | None = None
        self._due = False
        self.can_focus = bool(title)

    def show(self, frame: Frame, view: View) -> None:
        """Draw this from now on."""
        self._shown = frame, view
        self._redraw()

    def on_resize(self, _event: Resize) -> None:
        self._marked = None
        self._redraw()

    def _redraw(self) -> None:
        if self._shown is None:
            return
        frame, view = self._shown
        width = self.scrollable_content_region.width or self.app.size.width
        self._lines = self._draw(frame, width, view)
        self.display = bool(self._lines)
        size = Size(width, len(self._lines))
        if self.virtual_size != size:
            self.virtual_size = size
            self.refresh(layout=True)
        else:
            self.refresh()
        marked = self._lines.marked if isinstance(self._lines, Rows) else None
        if marked != self._marked:
            self._marked, self._due = marked, marked is not None
            self.call_after_refresh(self._bring)

    def _bring(self) -> None:
        """Scroll no further than needed to see the marked row."""
        lines = self._lines
        room = self.scrollable_content_region.height
        if not self._due or not room or not isinstance(lines, Rows) or lines.marked is None:
            return
        self._due = False
        least = lines.marked - max(1, room - len(lines.head)) + 1
        top = max(least, min(lines.marked, int(self.scroll_offset.y)))
        # Forced: whether there is a scroll bar is only known once all is laid out.
        self.scroll_to(y=top, animate=False, force=True)

    def line_at(self, y: int) -> int:
        """The line that is shown `y` cells below the top."""
        stays = len(self._lines.head) if isinstance(self._lines, Rows) else 0
        return y if y < stays else y + int(self.scroll_offset.y)

    def render_line(self, y: int) -> Strip:
        line, width, style = self.line_at(y), self.scrollable_content_region.width, self.rich_style
        if line >= len(self._lines):
            return Strip.blank(width, style)
        shown = self._lines[line]
        strip = Strip(shown.render(self.app.console), shown.cell_len)
        return strip.adjust_cell_length(width, style).apply_style(style)


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
            self.post_message(self.Moved(to=self.line_at(offset.y), opened=event.chain > 1))
