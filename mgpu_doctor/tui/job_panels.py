"""Panels of a job in which a rank or a finding can be selected and opened."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding, BindingType
from textual.events import Click, Key
from textual.message import Message

from mgpu_doctor.tui.panel import Panel
from mgpu_doctor.tui.row_selection import SelectingPanel
from mgpu_doctor.tui.view import RankKey

if TYPE_CHECKING:
    from mgpu_doctor.findings import RankSummary


class RanksPanel(SelectingPanel[RankKey]):
    """A typed number selects, too."""

    KEYS, KEYS_ANYWHERE = "⏎ open", "r sort"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "open", "rank")]

    class Chosen(Message):
        """This rank was selected. `opened`: open its page."""

        def __init__(self, who: RankKey, opened: bool = False) -> None:
            super().__init__()
            self.who, self.opened = who, opened

    _typed = ""

    def on_key(self, event: Key) -> None:
        """Selects a rank by its number, typed digit by digit, if there is such a rank."""
        if event.character is None or event.character not in "0123456789":
            return
        event.stop()
        ranks = {rank.rank: rank for rank in self._ranks}
        for typed in (self._typed + event.character, event.character):
            rank = ranks.get(int(typed))
            if rank is not None:
                self.choose(RankKey.of(rank))
                self._typed = typed
                return
        self.notify(f"There is no rank {event.character}.", markup=False)

    @property
    def rows(self) -> list[RankKey]:
        return [RankKey.of(rank) for rank in self._ranks]

    @property
    def selected(self) -> RankKey | None:
        return self.view.rank

    def first(self) -> int:
        """Returns the row of the first culprit."""
        if self._shown is None or self._shown[0].diagnosis is None:
            return 0
        from mgpu_doctor.tui.panels.rank_table import row_of_culprit

        return row_of_culprit(self._shown[0].diagnosis, self._ranks, self.view.finding) or 0

    def choose(self, row: RankKey, *, opened: bool = False) -> None:
        self._typed = ""
        self.post_message(self.Chosen(row, opened))

    @property
    def _ranks(self) -> list[RankSummary]:
        if self._shown is None or self._shown[0].diagnosis is None:
            return []
        from mgpu_doctor.tui.panels.rank_table import listed_ranks

        return listed_ranks(*self._shown)


class FindingsPanel(Panel):
    """The panel in which a finding can be selected and opened."""

    KEYS, KEYS_ANYWHERE = "⏎ explain", "y copy fix"
    TAKES_FOCUS = True
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "move(-1)", "previous finding", show=False),
        Binding("down", "move(1)", "next finding", show=False),
    ]

    class Moved(Message):
        """Requests to move the selection by `by` or to `to`. `opened`: open its details."""

        def __init__(self, by: int = 0, to: int | None = None, opened: bool = False) -> None:
            super().__init__()
            self.by, self.to, self.opened = by, to, opened

    def has_rows(self) -> bool:
        diagnosis = self._shown[0].diagnosis if self._shown is not None else None
        return diagnosis is not None and bool(diagnosis.findings)

    def action_move(self, by: int) -> None:
        self.post_message(self.Moved(by=by))

    def on_click(self, event: Click) -> None:
        offset = event.get_content_offset(self)
        if offset is not None:
            self.post_message(self.Moved(to=self.line_at(offset.y), opened=event.chain > 1))
