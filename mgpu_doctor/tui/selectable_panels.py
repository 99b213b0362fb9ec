"""Panels in which a rank or a GPU can be selected and opened."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding, BindingType
from textual.events import Key
from textual.message import Message

from mgpu_doctor.live.frame import Frame, GpuKey
from mgpu_doctor.tui.filter.matching import shown
from mgpu_doctor.tui.panels.gpu_table import rows_of
from mgpu_doctor.tui.row_selection import SelectingPanel
from mgpu_doctor.tui.view import RankKey, View

if TYPE_CHECKING:
    from mgpu_doctor.findings import RankSummary


class RanksPanel(SelectingPanel[RankKey]):
    """A typed number selects, too."""

    KEYS = "r sort  ⏎ open"
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
        ranks = {rank.rank: rank for rank in self._ranks}
        for typed in (self._typed + event.character, event.character):
            rank = ranks.get(int(typed))
            if rank is not None:
                self.choose(RankKey.of(rank))
                self._typed = typed
                break

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

        return row_of_culprit(self._shown[0].diagnosis, self._ranks) or 0

    def choose(self, row: RankKey, *, opened: bool = False) -> None:
        self._typed = ""
        self.post_message(self.Chosen(row, opened))

    @property
    def _ranks(self) -> list[RankSummary]:
        if self._shown is None or self._shown[0].diagnosis is None:
            return []
        from mgpu_doctor.tui.panels.rank_table import listed_ranks

        return listed_ranks(*self._shown)


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
        return bool(self.rows)

    @property
    def rows(self) -> list[GpuKey]:
        if self._shown is None:
            return []
        frame, view = self._shown
        return [gpu.which for gpu, _ in rows_of(shown(frame, view.filter).gpus)]

    @property
    def selected(self) -> GpuKey | None:
        return self.view.gpu

    def choose(self, row: GpuKey, *, opened: bool = False) -> None:
        self.post_message(self.Chosen(row, opened))
