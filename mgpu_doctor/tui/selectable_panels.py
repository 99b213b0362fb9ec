"""Panels in which a rank or a GPU can be selected and opened."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding, BindingType
from textual.events import Click, Focus, Key
from textual.message import Message

from mgpu_doctor.live.frame import Frame, GpuKey, HostGpu
from mgpu_doctor.tui.filter.matching import shown
from mgpu_doctor.tui.panel import Panel
from mgpu_doctor.tui.panels.gpu_table import rows_of
from mgpu_doctor.tui.panels.table_cells import Rows
from mgpu_doctor.tui.view import Order, RankKey, View

if TYPE_CHECKING:
    from mgpu_doctor.findings import RankSummary

FAR = 1 << 20
"""More rows than there are ranks."""


class RanksPanel(Panel):
    """Arrows, page keys, a click or a typed number select; Enter or a double click opens."""

    KEYS = "r sort  ⏎ open"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "move(-1)", "previous rank", show=False),
        Binding("down", "move(1)", "next rank", show=False),
        Binding("pageup", "turn(-1)", show=False),
        Binding("pagedown", "turn(1)", show=False),
        Binding("home", f"move({-FAR})", show=False),
        Binding("end", f"move({FAR})", show=False),
        Binding("enter", "open", "rank"),
    ]

    class Chosen(Message):
        """This rank was selected. `opened`: open its page."""

        def __init__(self, who: RankKey, opened: bool = False) -> None:
            super().__init__()
            self.who, self.opened = who, opened

    _typed = ""

    def show(self, frame: Frame, view: View) -> None:
        before = self._view
        super().show(frame, view)
        if (before.order, before.reversed) != (view.order, view.reversed):
            self.border_title = self._titled(_by(view))  # which repaints the whole panel

    def on_focus(self, _event: Focus) -> None:
        if self._view.rank is None:
            self._choose(0)

    def action_move(self, by: int) -> None:
        self._choose(by)

    def action_turn(self, by: int) -> None:
        self._choose(by * max(1, self.scrollable_content_region.height - self.stays))

    def action_open(self) -> None:
        self._choose(0, opened=True)

    def on_key(self, event: Key) -> None:
        """Selects a rank by its number, typed digit by digit, if there is such a rank."""
        if event.character is None or event.character not in "0123456789":
            return
        ranks = {rank.rank: rank for rank in self._ranks}
        for typed in (self._typed + event.character, event.character):
            rank = ranks.get(int(typed))
            if rank is not None:
                self._say(rank)
                self._typed = typed
                break

    def on_click(self, event: Click) -> None:
        offset = event.get_content_offset(self)
        if offset is None or not isinstance(self._lines, Rows):
            return
        place = self.line_at(offset.y) - len(self._lines.head)
        if 0 <= place < len(self._ranks):
            self._say(self._ranks[place], opened=event.chain > 1)

    def _choose(self, by: int, *, opened: bool = False) -> None:
        """Selects the rank this many rows below the selected one."""
        ranks = self._ranks
        if not ranks:
            return
        from mgpu_doctor.tui.panels.rank_table import row_of_rank

        place = row_of_rank(self._view.rank, ranks)
        if place is None:
            by, place = by if abs(by) >= FAR else 0, self._first(ranks)
        self._say(ranks[max(0, min(len(ranks) - 1, place + by))], opened=opened)

    def _first(self, ranks: list[RankSummary]) -> int:
        from mgpu_doctor.tui.panels.rank_table import row_of_culprit

        diagnosis = self._shown[0].diagnosis if self._shown else None
        return (row_of_culprit(diagnosis, ranks) if diagnosis else None) or 0

    def _say(self, rank: RankSummary, *, opened: bool = False) -> None:
        self._typed = ""
        self.post_message(self.Chosen(RankKey.of(rank), opened))

    @property
    def _view(self) -> View:
        return self._shown[1] if self._shown else View()

    @property
    def _ranks(self) -> list[RankSummary]:
        if self._shown is None or self._shown[0].diagnosis is None:
            return []
        from mgpu_doctor.tui.panels.rank_table import listed_ranks

        return listed_ranks(*self._shown)


def _by(view: View) -> str:
    order = "" if view.order is Order.RANK else f" · by {view.order.value}"
    return f"Ranks{order}{' · reversed' if view.reversed else ''}"


class GpusPanel(Panel):
    """Arrows or a click select; Enter or a double click opens."""

    KEYS = "⏎ open"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "move(-1)", "previous GPU", show=False),
        Binding("down", "move(1)", "next GPU", show=False),
        Binding("enter", "open", "GPU"),
    ]

    class Chosen(Message):
        """This GPU was selected. `opened`: open its page."""

        def __init__(self, which: GpuKey, opened: bool = False) -> None:
            super().__init__()
            self.which, self.opened = which, opened

    def show(self, frame: Frame, view: View) -> None:
        super().show(frame, view)
        self.can_focus = bool(self._gpus)

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
        """Selects the GPU this many rows below the selected one."""
        there = [gpu.which for gpu in self._gpus]
        if not there or self._shown is None:
            return
        chosen = self._shown[1].gpu
        place = there.index(chosen) + by if chosen in there else 0
        self.post_message(self.Chosen(there[max(0, min(len(there) - 1, place))], opened))

    @property
    def _gpus(self) -> tuple[HostGpu, ...]:
        if self._shown is None:
            return ()
        frame, view = self._shown
        return shown(frame, view.filter).gpus
