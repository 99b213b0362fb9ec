"""The panel in which a GPU can be selected and opened."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.events import Click, Focus
from textual.markup import escape
from textual.message import Message

from mgpu_doctor.case.gpu import Device
from mgpu_doctor.live.frame import Frame
from mgpu_doctor.report.text import cut, line
from mgpu_doctor.tui.filter.shown import shown
from mgpu_doctor.tui.panel import Panel
from mgpu_doctor.tui.panels.gpus import rows_of
from mgpu_doctor.tui.panels.rows import Rows
from mgpu_doctor.tui.view import View

LONGEST_HOST = 30


class GpusPanel(Panel):
    """Arrows or a click select; Enter or a double click opens."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "move(-1)", "previous GPU", show=False),
        Binding("down", "move(1)", "next GPU", show=False),
        Binding("enter", "open", "GPU"),
    ]

    class Chosen(Message):
        """The GPU of this index is selected from now on; `opened`: its page is wanted."""

        def __init__(self, index: int, opened: bool = False) -> None:
            super().__init__()
            self.index, self.opened = index, opened

    def show(self, frame: Frame, view: View) -> None:
        super().show(frame, view)
        title = escape(_of(frame))
        if title != self.border_title:
            self.border_title = title

    def on_focus(self, _event: Focus) -> None:
        if self._shown is not None and self._shown[1].gpu is None:
            self._choose(0)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "open":
            return bool(self._devices)
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
        rows = rows_of(self._devices)
        if 0 <= place < len(rows):
            self.post_message(self.Chosen(rows[place][0].index, event.chain > 1))

    def _choose(self, by: int, *, opened: bool = False) -> None:
        """The GPU so many below the one that is selected."""
        devices = self._devices
        if not devices or self._shown is None:
            return
        indices = [one.index for one in devices]
        chosen = self._shown[1].gpu
        place = indices.index(chosen) + by if chosen in indices else 0
        self.post_message(self.Chosen(indices[max(0, min(len(indices) - 1, place))], opened))

    @property
    def _devices(self) -> tuple[Device, ...]:
        if self._shown is None:
            return ()
        frame, view = self._shown
        return shown(frame, view.filter).devices


def _of(frame: Frame) -> str:
    """Whose they are, where the job's ranks are on several hosts."""
    host = frame.devices.host if frame.devices is not None else None
    ranks = frame.diagnosis.ranks if frame.diagnosis is not None else ()
    several = len({rank.host for rank in ranks}) > 1
    return f"GPUs of {cut(line(host), LONGEST_HOST)}" if host and several else "GPUs"
