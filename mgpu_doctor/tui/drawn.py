"""A part of a page that shows lines which were drawn for its size."""

from __future__ import annotations

from collections.abc import Iterable

from rich.text import Text
from textual.strip import Strip
from textual.widget import Widget


class DrawnLines(Widget):
    DEFAULT_CSS = "DrawnLines { width: 1fr; height: 1fr; }"

    def __init__(self) -> None:
        super().__init__()
        self._strips: list[Strip] = []

    def put(self, lines: Iterable[Text]) -> None:
        """Show these from now on."""
        console = self.app.console
        self._strips = [Strip(line.render(console), line.cell_len) for line in lines]
        self.refresh()

    def render_line(self, y: int) -> Strip:
        style = self.rich_style
        if y >= len(self._strips):
            return Strip.blank(self.size.width, style)
        return self._strips[y].adjust_cell_length(self.size.width, style).apply_style(style)
