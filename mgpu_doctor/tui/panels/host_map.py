"""The map of ranks: a row for each host, stage or process group, a cell for each rank. Pure.

A cell is a rank's own work of the newest steps beyond the median of the other ranks, in the levels
of the heat map of steps; ranks that do not run have marks. Only rows on the screen are made."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rich.cells import cell_len
from rich.style import Style
from rich.text import Text

from mgpu_doctor.findings import Diagnosis, RankSummary
from mgpu_doctor.formatting import (
    UNKNOWN,
    format_count,
    format_rank_numbers,
    format_seconds,
    format_share,
)
from mgpu_doctor.live.frame import HOST, Frame
from mgpu_doctor.live.host_statuses import HostStatus
from mgpu_doctor.live.rank_map import RankGroup, RankMap, has_failed
from mgpu_doctor.report import text
from mgpu_doctor.report.rank_rows import state
from mgpu_doctor.report.verdict import MARKS, STYLES, Tone
from mgpu_doctor.tui.filter.matching import format_left, kept, kept_by, shown
from mgpu_doctor.tui.panels.gpu_columns import without_domain
from mgpu_doctor.tui.panels.heatmap import LEVELS, legend, level
from mgpu_doctor.tui.panels.rank_table import blamed_ranks
from mgpu_doctor.tui.panels.table_cells import DIM, FULL, NOTE, Column, Rows, cell, fitting
from mgpu_doctor.tui.view import RankKey, Row, Spot, View

FAILED, HUNG, MISSING = MARKS[Tone.CRITICAL], MARKS[Tone.WARNING], "○"
CURSOR = "▾"
ALARM = STYLES[Tone.CRITICAL]
MARKS_OF = {"hung": HUNG, "missing": MISSING}
"""State -> the cell of a rank; of other failures `FAILED`."""
NOTEWORTHY = 0.10
"""Excess up to which groups count as equal when they are sorted: noise must not move rows."""
SEVERAL = 2
"""Hosts from which the main screen has the map."""
LONGEST_NAME = 24
WORST = Column("worst", 10, right=True)
SUMMARY = (
    WORST,
    Column("own work", 8, right=True, rank=1),
    Column("wait", 8, right=True, rank=4),
    Column("last", 5, right=True, rank=3),
    Column("GPU", 5, right=True, rank=2),
    Column("cpu", 5, right=True, rank=5),
    Column("memory", 6, right=True, rank=6),
    Column("ranks", 13, rank=7),
)
OF_HOSTS = ("GPU", "cpu", "memory")


class Listed(NamedTuple):
    """A row of the map. `places`: of the ranks that the filter leaves. `host`: None unless the
    groups are hosts."""

    group: RankGroup
    places: tuple[int, ...]
    host: HostStatus | None


class Line(NamedTuple):
    """A line of the map: cells `start` to `stop` of a row. A row has several if it is too long."""

    row: int
    start: int
    stop: int


def has_map(frame: Frame, view: View) -> bool:
    """Returns whether the screen shows the map."""
    return frame.map is not None and (view.alone or len(frame.hosts) >= SEVERAL)


def _shown_of(hosts: Sequence[HostStatus]) -> Iterator[object]:
    """Yields what the map shows of hosts: not when each was heard, unless that is too long ago."""
    yield len(hosts)
    for host in hosts:
        heard = round(host.heard) if host.silent and host.heard is not None else 0
        yield from (host.name, host.silent, heard, host.trouble, host.sample)


def _made_of(frame: Frame, width: int, view: View) -> tuple[object, ...]:
    return (
        frame.map,
        frame.diagnosis,
        frame.devices,
        frame.elsewhere,
        *_shown_of(frame.hosts),
        frame if view.filter else None,
        width,
        view,
    )


@kept_by(_made_of)
def map_lines(frame: Frame, width: int, view: View) -> Sequence[Text]:
    ranks, diagnosis = frame.map, frame.diagnosis
    if ranks is None or diagnosis is None or not has_map(frame, view):
        return []
    listed = listed_groups(frame, view)
    sheet = _Sheet.fit(frame, listed, width, view)
    lines = lines_of(listed, sheet.cells)
    row = row_of_spot(listed, view.spot)
    chosen = (
        cell_of_spot(listed[row], view.spot, diagnosis) if view.spot and row is not None else None
    )
    head = [_info(ranks, diagnosis, width, view), sheet.head(chosen)]
    if view.filter is not None:
        left = sum(len(row.places) for row in listed)
        note = format_left(left, len(diagnosis.ranks), "rank", view.filter)
        head.insert(0, Text(text.cut(note, width), style=NOTE))

    def make(place: int) -> Text:
        line = lines[place]
        return sheet.line(listed[line.row], line)

    return Rows(head, len(lines), make, line_of_spot(listed, lines, view.spot, diagnosis))


def cells_per_line(frame: Frame, width: int, view: View) -> tuple[int, int]:
    """Returns the column in which cells begin, and how many a line has."""
    if frame.map is None or frame.diagnosis is None:
        return 0, 1
    listed = listed_groups(frame, view)
    sheet = _Sheet.fit(frame, listed, width, view)
    return sheet.name + 3, sheet.cells


@kept_by(
    lambda frame, view: (
        frame.map,
        *_shown_of(frame.hosts),
        view.by,
        view.worst_first,
        view.filter,
    )
)
def listed_groups(frame: Frame, view: View) -> list[Listed]:
    """Returns the rows in screen order. Worst first: blamed, then with ranks that failed or hang,
    then silent, then by the largest excess."""
    if frame.map is None:
        return []
    grouping = frame.map.grouping(view.by)
    hosts = {host.name: host for host in frame.hosts} if grouping.by == HOST else {}
    rows = [Listed(group, group.places, hosts.get(group.name)) for group in grouping.groups]
    there = {group.name for group in grouping.groups}
    rows += [
        Listed(_empty(host.name), (), host) for name, host in hosts.items() if name not in there
    ]
    if view.filter is not None:
        rows = _filtered(frame, view, rows)
    return sorted(rows, key=_badness) if view.worst_first else rows


def _filtered(frame: Frame, view: View, rows: Sequence[Listed]) -> list[Listed]:
    assert view.filter is not None
    ranks = frame.diagnosis.ranks if frame.diagnosis else ()
    left = {id(rank) for rank in shown(frame, view.filter).ranks}
    kept_rows = [
        row._replace(places=tuple(place for place in row.places if id(ranks[place]) in left))
        for row in rows
    ]
    return [
        after
        for before, after in zip(rows, kept_rows, strict=True)
        if after.places or (not before.places and view.filter.matches(Row(host=before.group.name)))
    ]


def _empty(name: str) -> RankGroup:
    return RankGroup(name, (), None, None, None, None, 0, blamed=False)


def _badness(row: Listed) -> tuple[bool, bool, bool, float]:
    excess = row.group.excess or 0.0
    bounds = [bound for bound, _, _ in LEVELS if bound < excess and bound >= NOTEWORTHY]
    silent = row.host is not None and row.host.silent
    return not row.group.blamed, not row.group.stopped, not silent, -len(bounds)


def lines_of(listed: Sequence[Listed], cells: int) -> list[Line]:
    """Returns the lines, with at most `cells` cells each."""
    return [
        Line(row, start, min(start + cells, len(group.places)))
        for row, group in enumerate(listed)
        for start in range(0, max(1, len(group.places)), cells)
    ]


def line_of_spot(
    listed: Sequence[Listed], lines: Sequence[Line], spot: Spot | None, diagnosis: Diagnosis
) -> int | None:
    """Returns the line that has the selected place."""
    row = row_of_spot(listed, spot)
    if spot is None or row is None:
        return None
    at = cell_of_spot(listed[row], spot, diagnosis) or 0
    return next(
        (
            place
            for place, line in enumerate(lines)
            if line.row == row and line.start <= at < max(line.stop, 1)
        ),
        None,
    )


def row_of_spot(listed: Sequence[Listed], spot: Spot | None) -> int | None:
    """Returns the row of the selected group; None if it is not listed."""
    return next(
        (place for place, row in enumerate(listed) if spot and row.group.name == spot.group), None
    )


def cell_of_spot(row: Listed, spot: Spot, diagnosis: Diagnosis) -> int | None:
    """Returns which of the row's cells is selected; None: the row itself."""
    ranks = diagnosis.ranks
    return next(
        (at for at, place in enumerate(row.places) if RankKey.of(ranks[place]) == spot.rank), None
    )


def describe_silence(host: HostStatus) -> str:
    """Returns how long a host was not heard, and why: `last heard 45 s ago: Connection refused`."""
    age = None if host.heard is None else format_seconds(round(host.heard))
    if host.trouble is None:
        return f"silent for {age}"
    return f"{'not heard' if age is None else f'last heard {age} ago'}: {text.line(host.trouble)}"


def _info(ranks: RankMap, diagnosis: Diagnosis, width: int, view: View) -> Text:
    """Returns the first line: the selected cell, else what the map shows and its levels."""
    spot = view.spot
    if spot is not None and spot.rank is not None:
        for place, rank in enumerate(diagnosis.ranks):
            if RankKey.of(rank) == spot.rank:
                return _describe_rank(rank, ranks.excess[place], width)
    grouping = ranks.grouping(view.by)
    where = ("on", HOST) if grouping.by == HOST else ("in", "group")
    groups = format_count(len(grouping.groups), where[1])
    many = f"{format_count(len(diagnosis.ranks), 'rank')} {where[0]} {groups}"
    if not ranks.steps:
        why = f": own work is not compared: {text.line(ranks.why)}" if ranks.why else ""
        return Text(text.cut(f"{many}{why}", width), style=DIM)
    marks = f"  {FAILED} failed  {HUNG} hung  {MISSING} missing  {UNKNOWN} not measured"
    for words in (
        f"{many}, own work beyond the others in the latest {ranks.steps} steps: ",
        f"{many}; beyond the others: ",
        "own work beyond the others: ",
        "",
    ):
        made = Text(words, style=DIM).append_text(legend())
        if made.cell_len + len(marks) <= width:
            return made.append(marks, style=DIM)
        if made.cell_len <= width:
            return made
    return Text(text.cut(many, width), style=DIM)


def _describe_rank(rank: RankSummary, excess: float | None, width: int) -> Text:
    number = UNKNOWN if rank.rank is None else str(rank.rank)
    step = UNKNOWN if rank.last_step is None else str(rank.last_step)
    beyond = (
        "own work not compared"
        if excess is None
        else f"own work {_signed(excess)} beyond the others"
    )
    where = f", in {text.line(rank.where)}" if rank.where and rank.state != "exited" else ""
    who = f"rank {number} on {text.line(rank.host)}"
    words = f"{who}: {beyond}, {state(rank)}, step {step}{where}"
    return Text(text.cut(words, width), style="bold")


@kept_by(lambda frame: (frame.devices, frame.elsewhere))
def _busy(frame: Frame) -> Mapping[str | None, float]:
    """Returns the mean utilization, 0..1, of the GPUs of each host that reports any."""
    samples = [sample for sample in (frame.devices, *frame.elsewhere) if sample is not None]
    known = {
        sample.host: [each.utilization for each in sample.devices if each.utilization is not None]
        for sample in samples
    }
    return {host: sum(busy) / len(busy) for host, busy in known.items() if busy}


@dataclass(frozen=True, slots=True)
class _Sheet:
    """The map's dimensions and what its rows are made of."""

    ranks: RankMap
    diagnosis: Diagnosis
    columns: Sequence[Column]
    by: str
    name: int
    """Cells of a group's name."""
    names: Mapping[str, str]
    cells: int
    """Ranks in a line."""
    width: int
    blamed: frozenset[int | None]
    busy: Mapping[str | None, float]
    spot: Spot | None

    @classmethod
    def fit(
        cls,
        frame: Frame,
        listed: Sequence[Listed],
        width: int,
        view: View,
    ) -> _Sheet:
        ranks, diagnosis = frame.map, frame.diagnosis
        assert ranks is not None
        assert diagnosis is not None
        by = ranks.grouping(view.by).by
        names = _names(tuple(row.group.name for row in listed), by)
        name = max([4, *(cell_len(each) for each in names.values())])
        name = min(name, LONGEST_NAME, max(4, width // 4))
        busy = _busy(frame) if by == HOST else {}
        dropped = () if by == HOST else OF_HOSTS
        dropped = dropped if busy else (*dropped, "GPU")
        wanted = [column for column in SUMMARY if column.title not in dropped]
        longest = max((len(row.places) for row in listed), default=0)
        room = width - name - 3
        # A row that does not fit into a line with its worst rank leaves half for the summary.
        cells = longest if longest <= room - WORST.width - 1 else room // 2
        return cls(
            ranks=ranks,
            diagnosis=diagnosis,
            columns=fitting(wanted, room - cells),
            by=by,
            name=name,
            names=names,
            cells=max(1, cells),
            width=width,
            blamed=frozenset(blamed_ranks(diagnosis)),
            busy=busy,
            spot=view.spot,
        )

    def head(self, chosen: int | None) -> Text:
        """Returns the titles of columns. `chosen`: the selected cell of its row, which is marked: a
        full block cannot be reversed."""
        made = Text.assemble("  ", cell(self.by, Column("", self.name), DIM), " ")
        mark = "" if chosen is None else " " * (chosen % self.cells) + CURSOR
        made.append(mark.ljust(self.cells), style="bold")
        for column in self.columns:
            made.append(" ").append_text(cell(column.title, column, DIM))
        made.truncate(self.width, overflow="ellipsis")
        return made

    def line(self, row: Listed, line: Line) -> Text:
        group, first = row.group, line.start == 0
        silent = row.host is not None and row.host.silent
        name = self.names[group.name] if first else ""
        made = Text.assemble(("▸" if group.blamed and first else " ", "bold red"), " ")
        label = cell(Text(text.cut(name, self.name)), Column("", self.name))
        label.stylize("bold" if group.blamed else "dim" if silent else "")
        if first and self.spot is not None and self.spot.group == group.name:
            label.stylize("reverse")
        made.append_text(label).append(" ")
        chosen = self.spot.rank if self.spot and self.spot.group == group.name else None
        for place in row.places[line.start : line.stop]:
            made.append(*self._cell(place, chosen, silent=silent))
        made.append(" " * (self.cells - (line.stop - line.start)))
        if first and row.host is not None and silent:
            made.append(f" {describe_silence(row.host)}", style="bold yellow")
        elif first:
            for column in self.columns:
                made.append(" ").append_text(cell(SHOW[column.title](self, row), column))
        made.truncate(self.width, overflow="ellipsis")
        return made

    def _cell(self, place: int, chosen: RankKey | None, *, silent: bool) -> tuple[str, str | Style]:
        rank, excess = self.diagnosis.ranks[place], self.ranks.excess[place]
        if has_failed(rank):
            glyph, style = MARKS_OF.get(rank.state, FAILED), ALARM
        elif excess is None:
            glyph, style = UNKNOWN, DIM
        else:
            glyph, style = level(excess)
        style = DIM if silent else style
        style += " underline" if rank.rank in self.blamed else ""
        if chosen is not None and RankKey.of(rank) == chosen:
            style += " bold" if glyph == FULL else " reverse"
        return glyph, style

    def worst(self, row: Listed) -> Text:
        group, ranks = row.group, self.diagnosis.ranks
        if group.stopped:
            failed = [state(ranks[place]) for place in group.places if has_failed(ranks[place])]
            same = len(set(failed)) == 1
            words = f"{len(failed)} {failed[0] if same else 'failed'}" if failed[1:] else failed[0]
            return Text(words.rjust(WORST.width), style=ALARM)
        if group.excess is None:
            return Text(UNKNOWN.rjust(WORST.width), style=DIM)
        shown_excess = _signed(group.excess).rjust(WORST.width)
        return Text(shown_excess, style=level(group.excess)[1])


def _signed(excess: float) -> str:
    return f"{max(0.0, excess) * 100:+.0f} %"


@kept
def _names(names: tuple[str, ...], by: str) -> Mapping[str, str]:
    lines = [text.line(name) or UNKNOWN for name in names]
    bare = without_domain(lines) if by == HOST and lines else lines
    return dict(zip(names, bare, strict=True))


def _cpu(_: _Sheet, row: Listed) -> str:
    sample = row.host.sample if row.host else None
    known = sample.cpu_percent if sample else None
    return UNKNOWN if known is None else f"{known:.0f} %"


def _memory(_: _Sheet, row: Listed) -> str:
    sample = row.host.sample if row.host else None
    if sample is None or sample.memory_used is None or not sample.memory_total:
        return UNKNOWN
    return format_share(sample.memory_used / sample.memory_total)


def _ranks(sheet: _Sheet, row: Listed) -> str:
    numbers = [sheet.diagnosis.ranks[place].rank for place in row.places]
    known = [number for number in numbers if number is not None]
    return format_rank_numbers(known, limit=4) if known else UNKNOWN


SHOW: Mapping[str, Callable[[_Sheet, Listed], str | Text]] = {
    "worst": lambda sheet, row: sheet.worst(row),
    "own work": lambda _, row: format_seconds(row.group.own),
    "wait": lambda _, row: format_seconds(row.group.wait),
    "last": lambda _, row: format_share(row.group.last),
    "GPU": lambda sheet, row: format_share(sheet.busy.get(row.group.name)),
    "cpu": _cpu,
    "memory": _memory,
    "ranks": _ranks,
}
"""Column -> its text. `last`: share of the latest steps in which a rank of the row came last."""
