"""The ranks: a line each with what it does, how far it is and where a step's time goes."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from functools import lru_cache

from rich.style import Style
from rich.text import Text

from mgpu_doctor.findings import Diagnosis, RankSummary
from mgpu_doctor.live.frame import Frame
from mgpu_doctor.report import phases, text
from mgpu_doctor.report.bars import bar
from mgpu_doctor.report.rows import state
from mgpu_doctor.report.verdict import leading
from mgpu_doctor.tui.filter.shown import shown, told
from mgpu_doctor.tui.panels.parts import DIM, NOTE, Column, cell, fitting
from mgpu_doctor.tui.sorting import Memory, memory_of, ordered
from mgpu_doctor.tui.view import Order, View

COLUMNS = (
    Column("", 1),
    Column("rank", 4, right=True),
    Column("host", 12, rank=6),
    Column("pid", 7, right=True, rank=4),
    Column("state", 9, rank=1),
    Column("step", 7, right=True),
    Column("a step", 7, right=True, rank=2),
    Column("memory", 8, right=True),
)
SHORTEST_BAR = 20
WHERE_FROM = 100
"""Width from which the place where a running rank stands gets a column of its own."""
MOVING = ("running", "waiting", "exited")
"""States in which a step's phases say more than the place where the rank was last seen."""
STATES = {"running": "green", "waiting": "yellow", "exited": DIM}


def lines(frame: Frame, width: int, view: View) -> list[Text]:
    diagnosis = frame.diagnosis
    if diagnosis is None:
        return []
    if not diagnosis.ranks:
        return [Text("no rank has joined yet", style=DIM)]
    left = shown(frame, view.filter).ranks
    memory = memory_of(frame) if view.order is Order.MEMORY else None
    sheet = _Sheet.fit(diagnosis, width, memory)
    made = [legend(diagnosis.ranks), sheet.head()]
    made += [sheet.row(rank) for rank in ordered(left, view, memory)]
    if view.filter is not None:
        note = told(len(left), len(diagnosis.ranks), "rank", view.filter)
        made.insert(0, Text(text.cut(note, width), style=NOTE))
    return made


def legend(ranks: Sequence[RankSummary]) -> Text:
    """The letters and colours of the phases that occur."""
    used = {name for rank in ranks for name in phases.known(rank.phases)}
    shown = Text()
    for name, look in phases.LOOKS.items():
        if name in used:
            shown.append(look.letter, style=DIM if name == "wait" else Style(color=look.colour))
            shown.append(f" {name}  ", style=DIM)
    return shown if used else Text("no step was measured yet", style=DIM)


@dataclass(frozen=True, slots=True)
class _Sheet:
    """The table's measures: columns, cells for the bar and the place, seconds of a full bar."""

    columns: Sequence[Column]
    room: int
    where: int
    scale: float
    blamed: Set[int | None]
    memory: Memory | None
    """Shown only where ranks are sorted by it."""

    @classmethod
    def fit(cls, diagnosis: Diagnosis, width: int, memory: Memory | None) -> _Sheet:
        several = len({rank.host for rank in diagnosis.ranks}) > 1
        dropped = {"" if several else "host", "" if memory else "memory"} - {""}
        wanted = [column for column in COLUMNS if column.title not in dropped]
        columns = fitting(wanted, width, SHORTEST_BAR)
        room = max(0, width - sum(column.width + 1 for column in columns))
        placed = any(rank.where and state(rank) != "exited" for rank in diagnosis.ranks)
        where = room // 3 if placed and width >= WHERE_FROM else 0
        return cls(
            columns=columns,
            room=room - where - bool(where),
            where=where,
            scale=max(_sum(rank) for rank in diagnosis.ranks),
            blamed=_blamed(diagnosis),
            memory=memory,
        )

    def head(self) -> Text:
        shown = Text(" ").join(cell(column.title, column, DIM) for column in self.columns)
        shown.append_text(cell(" where the time of a step goes", Column("", self.room + 1), DIM))
        if self.where:
            shown.append(" stands in", style=DIM)
        return shown

    def row(self, rank: RankSummary) -> Text:
        guilty = rank.rank in self.blamed
        doing = state(rank)
        cells: dict[str, str | Text] = {
            "": Text("▸" if guilty else " ", style="bold red"),
            "rank": text.UNKNOWN if rank.rank is None else str(rank.rank),
            "host": text.line(rank.host),
            "pid": "-" if rank.pid is None else str(rank.pid),
            "state": Text(doing, style=STATES.get(doing, "bold red")),
            "step": text.UNKNOWN if rank.last_step is None else str(rank.last_step),
            "a step": text.seconds(rank.step_seconds_median),
            "memory": text.size(self.memory(rank)) if self.memory else "",
        }
        style = "bold" if guilty else ""
        shown = Text(" ").join(cell(cells[one.title], one, style) for one in self.columns)
        shown.append(" ")
        place = text.line(rank.where) if rank.where and doing != "exited" else ""
        stands = bool(place) and doing not in MOVING
        if stands and not self.where:
            shown.append(text.cut(f"at {place}", self.room), style="yellow")
        else:
            shown.append_text(_bar((*phases.known(rank.phases).items(),), self.scale, self.room))
        if self.where and place:
            shown.append(f" {text.cut(place, self.where)}", style="yellow" if stands else DIM)
        return shown


@lru_cache(1024)
def _bar(known: tuple[tuple[str, float], ...], scale: float, room: int) -> Text:
    """Phases change with each diagnosis, which is less often than the screen is drawn."""
    return cell(bar(dict(known), scale, room), Column("", room))


def _sum(rank: RankSummary) -> float:
    return sum(phases.known(rank.phases).values())


def _blamed(diagnosis: Diagnosis) -> set[int | None]:
    lead = leading(diagnosis)
    return {culprit.rank for culprit in lead.culprits} - {None} if lead else set()
