"""The panel in which a GPU can be selected and opened."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.events import Click, Focus
from textual.message import Message

from mgpu_doctor.live.gpu import Gpu, Which
from mgpu_doctor.tui.filter.shown import shown
from mgpu_doctor.tui.panel import Panel
from mgpu_doctor.tui.panels.gpus import rows_of
from mgpu_doctor.tui.panels.rows import Rows


class GpusPanel(Panel):
    """Arrows or a click select; Enter or a double click opens."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "move(-1)", "previous GPU", show=False),
        Binding("down", "move(1)", "next GPU", show=False),
        Binding("enter", "open", "GPU"),
    ]

    class Chosen(Message):
        """This GPU is selected from now on; `opened`: its page is wanted."""

        def __init__(self, which: Which, opened: bool = False) -> None:
            super().__init__()
            self.which, self.opened = which, opened

    def on_focus(self, _event: Focus) -> None:
        if self._shown is not None and self._shown[1].gpu is None:
            self._choose(0)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "open":
            return bool(self._gpus)
        return super().check_action(action, parameters)

    def action_move(self, by: int) -> None:
        self._choose(by)

    def action_open(self) -> None:
        self._choose(0, opened=True)

    def on_click(self, event: Click) -> None:
        offset = event.get_content_offset(self)
        if offset is None or not isinstance(self._lines, Rows):
            return
        place = self.line_at(offset.y) - len(self._lines.head)
        rows = rows_of(self._gpus)
        if 0 <= place < len(rows):
            self.post_message(self.Chosen(rows[place][0].which, event.chain > 1))

    def _choose(self, by: int, *, opened: bool = False) -> None:
        """The GPU so many below the one that is selected."""
        there = [one.which for one in self._gpus]
        if not there or self._shown is None:
            return
        chosen = self._shown[1].gpu
        place = there.index(chosen) + by if chosen in there else 0
        self.post_message(self.Chosen(there[max(0, min(len(there) - 1, place))], opened))

    @property
    def _gpus(self) -> tuple[Gpu, ...]:
        if self._shown is None:
            return ()
        frame, view = self._shown
        return shown(frame, view.filter).gpus
