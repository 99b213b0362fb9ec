"""The panels of the machine: graphs, and, while no job is shown, the processes, of which one can be
selected and ended on request."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.message import Message

from mgpu_doctor.live.frame import Frame
from mgpu_doctor.tui.panel import Panel
from mgpu_doctor.tui.panels.machine_graphs import HEIGHT, LOW
from mgpu_doctor.tui.panels.process_table import listed_processes
from mgpu_doctor.tui.row_selection import SelectingPanel
from mgpu_doctor.tui.view import ProcessOrder, View


class GraphsPanel(Panel):
    """Graphs of the last minutes, drawn for every second frame: they move by whole cells, and cost
    half. Where there is no room, they are drawn once, to know how many lines they need."""

    @property
    def full_wish(self) -> int:
        """Returns the lines of the usual form, without drawing it."""
        if not self.compact:
            return self.wish
        return len(self._lines) // (1 + LOW) * (1 + HEIGHT) + bool(self._lines)

    def show(self, frame: Frame, view: View) -> None:
        drawn = self._shown[0] if self._shown is not None and self._lines else None
        soon = 1.5 * max(1.0, frame.interval)
        if (
            drawn is None
            or (drawn.diagnosis is None) != (frame.diagnosis is None)
            or frame.replay is not None
            or not (self._squeezed or 0 <= frame.at - drawn.at < soon)
        ):
            super().show(frame, view)


class ProcessesPanel(SelectingPanel[int]):
    """`r`, `R` and `T` sort, `k` asks whether to end the selected process."""

    OPENS = False
    TAKES_FOCUS = True
    KEYS = "r sort  T tree  k end"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("r", "sort", "sort", show=False),
        Binding("R", "reverse", "reverse", show=False),
        Binding("T", "tree", "tree", show=False),
        Binding("k", "end", "end process", show=False),
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

    def action_sort(self) -> None:
        orders = [order for order in ProcessOrder if order is not ProcessOrder.TREE]
        now = self.view.process_order
        place = orders.index(now) + 1 if now in orders else 0
        self.post_message(self.Sorted(orders[place % len(orders)], False))

    def action_reverse(self) -> None:
        view = self.view
        self.post_message(self.Sorted(view.process_order, not view.processes_reversed))

    def action_tree(self) -> None:
        is_tree = self.view.process_order is ProcessOrder.TREE
        self.post_message(self.Sorted(ProcessOrder.GPU if is_tree else ProcessOrder.TREE, False))

    def action_end(self) -> None:
        """Requests the end of the selected process, if it is listed."""
        if self.selected is None:
            self.notify("Select a process first: ↓.", markup=False)
        else:
            self.post_message(self.Chosen(self.selected, ended=True))

    @property
    def rows(self) -> list[int]:
        return [process.pid for process, _ in listed_processes(*self._shown)] if self._shown else []

    @property
    def selected(self) -> int | None:
        """The selected process; None if it is not listed, as after its end."""
        return self.view.process if self.view.process in self.rows else None

    def choose(self, row: int, *, opened: bool = False) -> None:
        self.post_message(self.Chosen(row, ended=opened))
