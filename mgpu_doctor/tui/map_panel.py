"""The panel in which a cell or a row of the map of ranks is selected and opened."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding, BindingType
from textual.events import Click
from textual.message import Message

from mgpu_doctor.live.frame import HOST
from mgpu_doctor.tui.panels.table_cells import Rows
from mgpu_doctor.tui.row_selection import SelectingPanel
from mgpu_doctor.tui.view import RankKey, Spot

if TYPE_CHECKING:
    from mgpu_doctor.tui.panels.host_map import Line, Listed


class MapPanel(SelectingPanel[Spot]):
    """Arrows move over names of hosts and cells of ranks; `b` groups the ranks by something else,
    `r` sorts by name."""

    KEYS, KEYS_ANYWHERE = "b group  r order  ⏎ open", "h alone"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "side(-1)", "previous cell", show=False),
        Binding("right", "side(1)", "next cell", show=False),
        Binding("enter", "open", "rank or host"),
        Binding("b", "group", "group"),
        Binding("r", "order", "order"),
    ]

    class Chosen(Message):
        """This place was selected. `opened`: open its page."""

        def __init__(self, spot: Spot, opened: bool = False) -> None:
            super().__init__()
            self.spot, self.opened = spot, opened

    class Arranged(Message):
        """Requests another grouping or order."""

        def __init__(self, by: str, worst_first: bool) -> None:
            super().__init__()
            self.by, self.worst_first = by, worst_first

    @property
    def rows(self) -> list[Spot]:
        return [Spot(self._listed[line.row].group.name) for line in self._map]

    @property
    def selected(self) -> Spot | None:
        return self.view.spot

    def choose(self, row: Spot, *, opened: bool = False) -> None:
        self.post_message(self.Chosen(row, opened))

    def action_move(self, by: int, *, opened: bool = False) -> None:
        """Moves this many lines down, to the cell in the same column."""
        lines, at = self._map, self._place()
        if not lines:
            return
        if at is None:
            self._choose_at(0, self._leftmost, opened=opened)
            return
        line, column = at
        self._choose_at(max(0, min(len(lines) - 1, line + by)), column, opened=opened)

    def action_side(self, by: int) -> None:
        """Moves to the cell beside, also from the end of a line to the next one."""
        lines, at = self._map, self._place()
        if not lines or at is None:
            self.action_move(0)
            return
        line, column = at
        if column + by < self._leftmost and line:
            self._choose_at(line - 1, len(self._listed[lines[line - 1].row].places))
        elif by > 0 and column + by >= lines[line].stop - lines[line].start:
            following = min(line + 1, len(lines) - 1)
            self._choose_at(following, self._leftmost if following > line else column)
        else:
            self._choose_at(line, max(self._leftmost, column + by))

    def action_group(self) -> None:
        ranks = self._shown[0].map if self._shown else None
        if ranks is not None:
            known = [each.by for each in ranks.groupings]
            now = known.index(ranks.grouping(self.view.by).by)
            self.post_message(self.Arranged(known[(now + 1) % len(known)], self.view.worst_first))

    def action_order(self) -> None:
        self.post_message(self.Arranged(self.view.by, not self.view.worst_first))

    def on_click(self, event: Click) -> None:
        offset = event.get_content_offset(self)
        if offset is None or not isinstance(self._lines, Rows) or self._shown is None:
            return
        from mgpu_doctor.tui.panels.host_map import cells_per_line

        frame, view = self._shown
        begin, cells = cells_per_line(frame, self.scrollable_content_region.width, view)
        line = self.line_at(offset.y) - len(self._lines.head)
        if 0 <= line < len(self._map):
            column = offset.x - begin if begin <= offset.x < begin + cells else self._leftmost
            self._choose_at(line, column, opened=event.chain > 1)

    @property
    def _leftmost(self) -> int:
        """The column left of all cells: a host's name, which has a page; of others the first
        cell."""
        return -1 if self.view.by == HOST else 0

    def _choose_at(self, line: int, column: int, *, opened: bool = False) -> None:
        chosen = self._map[line]
        row = self._listed[chosen.row]
        diagnosis = self._shown[0].diagnosis if self._shown else None
        at = min(chosen.start + column, chosen.stop - 1)
        if column < 0 or at < 0 or diagnosis is None or not row.places:
            self.choose(Spot(row.group.name), opened=opened)
        else:
            rank = diagnosis.ranks[row.places[at]]
            self.choose(Spot(row.group.name, RankKey.of(rank)), opened=opened)

    def _place(self) -> tuple[int, int] | None:
        """The line and the column that are selected; None: nothing that is listed."""
        if self._shown is None or self._shown[0].diagnosis is None or self.view.spot is None:
            return None
        from mgpu_doctor.tui.panels import host_map

        spot, diagnosis = self.view.spot, self._shown[0].diagnosis
        row = host_map.row_of_spot(self._listed, spot)
        if row is None:
            return None
        at = host_map.cell_of_spot(self._listed[row], spot, diagnosis)
        for place, line in enumerate(self._map):
            if line.row == row and (at is None or line.start <= at < line.stop):
                return place, -1 if at is None else at - line.start
        return None

    @property
    def _listed(self) -> list[Listed]:
        if self._shown is None or self._shown[0].map is None:
            return []
        from mgpu_doctor.tui.panels.host_map import listed_groups

        return listed_groups(*self._shown)

    @property
    def _map(self) -> list[Line]:
        if self._shown is None or self._shown[0].map is None:
            return []
        from mgpu_doctor.tui.panels.host_map import cells_per_line, lines_of

        frame, view = self._shown
        _, cells = cells_per_line(frame, self.scrollable_content_region.width, view)
        return lines_of(self._listed, cells)
