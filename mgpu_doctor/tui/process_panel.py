"""The panel in which a process is selected, sorted, found in its tree, and ended on request."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.events import Click, Focus
from textual.message import Message

from mgpu_doctor.live.frame import Frame
from mgpu_doctor.tui.panel import Panel
from mgpu_doctor.tui.panels.process_table import listed_processes, processes_title
from mgpu_doctor.tui.panels.table_cells import Rows
from mgpu_doctor.tui.view import ProcessOrder, View


class ProcessesPanel(Panel):
    """Arrows or a click select; `r`, `R` and `T` sort, `k` asks whether to end the process."""

    KEYS = "r sort  T tree  k end"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "move(-1)", "previous process", show=False),
        Binding("down", "move(1)", "next process", show=False),
        Binding("r", "sort", "sort"),
        Binding("R", "reverse", "reverse", show=False),
        Binding("T", "tree", "tree"),
        Binding("k", "end", "end process"),
    ]

    class Sorted(Message):
        """Requests another order."""

        def __init__(self, order: ProcessOrder, backwards: bool) -> None:
            super().__init__()
            self.order, self.backwards = order, backwards

    class Chosen(Message):
        """This process was selected. `ended`: the user wants to end it."""

        def __init__(self, pid: int, ended: bool = False) -> None:
            super().__init__()
            self.pid, self.ended = pid, ended

    def show(self, frame: Frame, view: View) -> None:
        before = processes_title(self._view)
        super().show(frame, view)
        if processes_title(view) != before:
            self.border_title = self._titled(processes_title(view))

    def on_focus(self, _event: Focus) -> None:
        if self._view.process not in self._pids:
            self._choose(0)

    def action_move(self, by: int) -> None:
        self._choose(by)

    def action_sort(self) -> None:
        orders = [order for order in ProcessOrder if order is not ProcessOrder.TREE]
        now = self._view.process_order
        place = orders.index(now) + 1 if now in orders else 0
        self.post_message(self.Sorted(orders[place % len(orders)], False))

    def action_reverse(self) -> None:
        view = self._view
        self.post_message(self.Sorted(view.process_order, not view.processes_reversed))

    def action_tree(self) -> None:
        is_tree = self._view.process_order is ProcessOrder.TREE
        self.post_message(self.Sorted(ProcessOrder.GPU if is_tree else ProcessOrder.TREE, False))

    def action_end(self) -> None:
        if self._view.process is not None:
            self.post_message(self.Chosen(self._view.process, ended=True))

    def on_click(self, event: Click) -> None:
        offset = event.get_content_offset(self)
        if offset is None or not isinstance(self._lines, Rows):
            return
        place = self.line_at(offset.y) - len(self._lines.head)
        if 0 <= place < len(self._pids):
            self.post_message(self.Chosen(self._pids[place]))

    def _choose(self, by: int) -> None:
        """Selects the process this many rows below the selected one."""
        pids, chosen = self._pids, self._view.process
        if pids:
            place = pids.index(chosen) + by if chosen in pids else 0
            self.post_message(self.Chosen(pids[max(0, min(len(pids) - 1, place))]))

    @property
    def _view(self) -> View:
        return self._shown[1] if self._shown else View()

    @property
    def _pids(self) -> list[int]:
        if self._shown is None:
            return []
        return [process.pid for process, _ in listed_processes(*self._shown)]
