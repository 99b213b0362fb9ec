"""Panels in which one row is selected: the keys and the mouse, whatever the rows are; and that of
the GPUs, the only one that the first frame has."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable, Sequence
from typing import ClassVar, Generic, TypeVar

from textual.binding import Binding, BindingType
from textual.events import Click, Focus
from textual.message import Message

from mgpu_doctor.live.frame import Frame, GpuKey
from mgpu_doctor.tui.filter.matching import shown
from mgpu_doctor.tui.panel import Panel
from mgpu_doctor.tui.panels import gpu_table
from mgpu_doctor.tui.panels.table_cells import Rows
from mgpu_doctor.tui.view import View

FAR = 1 << 20
"""More rows than there are."""
Row = TypeVar("Row", bound=Hashable)


class SelectingPanel(Panel, Generic[Row]):
    """Arrows, page keys or a click select a row; Enter or a double click opens it, if rows can be
    opened."""

    OPENS: ClassVar[bool] = True
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "move(-1)", "previous", show=False),
        Binding("down", "move(1)", "next", show=False),
        Binding("pageup", "turn(-1)", show=False),
        Binding("pagedown", "turn(1)", show=False),
        Binding("home", f"move({-FAR})", show=False),
        Binding("end", f"move({FAR})", show=False),
    ]

    @property
    @abstractmethod
    def rows(self) -> Sequence[Row]:
        """What each row below the head is about. Several rows may be about one."""

    @property
    @abstractmethod
    def selected(self) -> Row | None:
        """What the user selected last, whether or not it still has a row."""

    @abstractmethod
    def choose(self, row: Row, *, opened: bool = False) -> None:
        """Requests this selection."""

    def first(self) -> int:
        """Returns the row that is selected first."""
        return 0

    @property
    def view(self) -> View:
        return self._shown[1] if self._shown else View()

    def on_focus(self, _event: Focus) -> None:
        if self.OPENS and self.selected is None:
            self.action_move(0)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "open":
            return bool(self.rows)
        return super().check_action(action, parameters)

    def action_open(self) -> None:
        self.action_move(0, opened=True)

    def action_turn(self, by: int) -> None:
        self.action_move(by * max(1, self.scrollable_content_region.height - self.stays))

    def action_move(self, by: int, *, opened: bool = False) -> None:
        """Selects the row this many rows below the selected one; at first, the first one."""
        rows = list(dict.fromkeys(self.rows))
        if not rows:
            return
        chosen = self.selected
        place = rows.index(chosen) + by if chosen in rows else None
        if place is None:
            place = self.first() + (by if abs(by) >= FAR else 0)
        self.choose(rows[max(0, min(len(rows) - 1, place))], opened=opened)

    def on_click(self, event: Click) -> None:
        offset = event.get_content_offset(self)
        if offset is None or not isinstance(self._lines, Rows):
            return
        line = self.line_at(offset.y) - len(self._lines.head)
        rows, place = self.rows, self.row_at(line, offset.x)
        if line >= 0 and place < len(rows):
            self.choose(rows[place], opened=self.OPENS and event.chain > 1)

    def row_at(self, line: int, cell: int) -> int:  # noqa: ARG002 - a row is as wide as the panel
        """Returns the row of a line below the head, at a cell of it."""
        return line


class GpusPanel(SelectingPanel[GpuKey]):
    KEYS = "⏎ open"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "open", "GPU")]

    class Chosen(Message):
        """This GPU was selected. `opened`: open its page."""

        def __init__(self, which: GpuKey, opened: bool = False) -> None:
            super().__init__()
            self.which, self.opened = which, opened

    def show(self, frame: Frame, view: View) -> None:
        super().show(frame, view)
        self.can_focus = self._keys_work

    def has_rows(self) -> bool:
        if self._shown is None:
            return False
        frame, view = self._shown
        return bool(shown(frame, view.filter).gpus)

    @property
    def rows(self) -> list[GpuKey]:
        if self._shown is None:
            return []
        frame, view = self._shown
        return [gpu.which for gpu, _ in gpu_table.rows_of(shown(frame, view.filter).gpus)]

    def row_at(self, line: int, cell: int) -> int:
        return gpu_table.row_at(line, cell, len(self.rows), self._cells) if self.compact else line

    @property
    def selected(self) -> GpuKey | None:
        return self.view.gpu

    def choose(self, row: GpuKey, *, opened: bool = False) -> None:
        self.post_message(self.Chosen(row, opened))
