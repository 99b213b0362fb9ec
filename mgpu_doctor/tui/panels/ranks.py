"""The ranks: a line each with what it does, how far it is and where a step's time goes."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass

from rich.style import Style
from rich.text import Text

from mgpu_doctor.findings import Diagnosis, RankSummary
from mgpu_doctor.report import phases, text
from mgpu_doctor.report.bars import bar
from mgpu_doctor.report.rows import state
from mgpu_doctor.report.verdict import leading
from mgpu_doctor.tui.frame import Frame, Order, View
from mgpu_doctor.tui.panels.parts import DIM, Column, cell, fitting

COLUMNS = (
    Column("", 1),
    Column("rank", 4, right=True),
    Column("host", 12, rank=6),
    Column("pid", 7, right=True, rank=4),
    Column("state", 9, rank=1),
    Column("step", 7, right=True),
    Column("a step", 7, right=True, rank=2),
)
SHORTEST_BAR = 20
WHERE_FROM = 100
"""Width from which the place where a running rank stands gets a column of its own."""
MOVING = ("running", "waiting", "exited")
"""States in which a step's phases say more than the place where the rank was last seen."""
NOT_WORK = ("wait", "communication")
STATES = {"running": "green", "waiting": "yellow", "exited": DIM}


def lines(frame: Frame, width: int, view: View) -> list[Text]:
    diagnosis = frame.diagnosis
    if diagnosis is None:
        return []
    if not diagnosis.ranks:
        return [Text("no rank has joined yet", style=DIM)]
    sheet = _Sheet.fit(diagnosis, width)
    return [
        legend(diagnosis.ranks),
        sheet.head(),
        *(sheet.row(rank) for rank in ordered(diagnosis.ranks, view.order)),
    ]


def ordered(ranks: Sequence[RankSummary], order: Order) -> list[RankSummary]:
    if order is Order.OWN:
        return sorted(ranks, key=lambda rank: -own_work(rank))
    if order is Order.STEP:
        return sorted(ranks, key=lambda rank: -1 if rank.last_step is None else rank.last_step)
    return list(ranks)


def own_work(rank: RankSummary) -> float:
    """Seconds a step that the rank worked itself, as far as measured."""
    return sum(value for name, value in phases.known(rank.phases).items() if name not in NOT_WORK)


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

    @classmethod
    def fit(cls, diagnosis: Diagnosis, width: int) -> _Sheet:
        several = len({rank.host for rank in diagnosis.ranks}) > 1
        wanted = [column for column in COLUMNS if several or column.title != "host"]
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
        }
        style = "bold" if guilty else ""
        shown = Text(" ").join(cell(cells[one.title], one, style) for one in self.columns)
        shown.append(" ")
        place = text.line(rank.where) if rank.where and doing != "exited" else ""
        stands = bool(place) and doing not in MOVING
        if stands and not self.where:
            shown.append(text.cut(f"at {place}", self.room), style="yellow")
        else:
            drawn = bar(phases.known(rank.phases), self.scale, self.room)
            shown.append_text(cell(drawn, Column("", self.room)))
        if self.where and place:
            shown.append(f" {text.cut(place, self.where)}", style="yellow" if stands else DIM)
        return shown


def _sum(rank: RankSummary) -> float:
    return sum(phases.known(rank.phases).values())


def _blamed(diagnosis: Diagnosis) -> set[int | None]:
    lead = leading(diagnosis)
    return {culprit.rank for culprit in lead.culprits} - {None} if lead else set()
