"""The table of ranks: state, step, and where a step's time goes. Pure."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from functools import lru_cache

from mgpu_probes.inprocess.layout import PHASES
from rich.text import Text

from mgpu_doctor.findings import Diagnosis, RankSummary, Severity
from mgpu_doctor.formatting import UNKNOWN, format_bytes, format_seconds
from mgpu_doctor.live.frame import Frame
from mgpu_doctor.report import phase_bars, text
from mgpu_doctor.report.device_timing import format_run_ahead, summarize_busy_waiting
from mgpu_doctor.report.phase_bars import bar
from mgpu_doctor.report.rank_rows import state
from mgpu_doctor.tui.filter.matching import format_left, kept, kept_by, shown, used
from mgpu_doctor.tui.panels.table_cells import DIM, NOTE, Column, Rows, cell, fitting, join_parts
from mgpu_doctor.tui.rank_order import Memory, memory_of, ordered
from mgpu_doctor.tui.view import Order, RankKey, View

HOST = Column("host", 12, rank=6)
AHEAD = Column("host ahead", 10, right=True, rank=3)
"""How far the host is ahead of its GPU when backward begins; shown if known for any rank."""
COLUMNS = (
    Column("", 1),
    Column("rank", 4, right=True),
    HOST,
    Column("pid", 7, right=True, rank=4),
    Column("state", 9, rank=1),
    Column("step", 7, right=True),
    Column("per step", 8, right=True, rank=2),
    AHEAD,
    Column("memory", 8, right=True),
)
SHORTEST_BAR = 20
WHERE_FROM = 100
"""Width from which a running rank's code location gets its own column."""
MEMORY_FROM = 140
"""Width from which memory is shown in any sort order."""
FIRST = 16
"""Memory is shown unasked only if one of this many first ranks reports it."""
MOVING = ("running", "waiting", "exited")
"""States in which the phases of a step say more than the last known code location."""
STATES = {"running": "green", "waiting": "yellow", "exited": DIM}


def made_of(frame: Frame, width: int, view: View) -> tuple[object, ...]:
    """Returns the inputs of the table. Ranks and their memory are read less often than the screen
    is drawn."""
    memory = frame.devices if used(frame) else frame.host and frame.host.processes
    return (frame.diagnosis, memory, frame.elsewhere, frame if view.filter else None, width, view)


@kept_by(made_of)
def rank_lines(frame: Frame, width: int, view: View) -> Sequence[Text]:
    """Returns the table. It scrolls to the culprit unless another rank is selected."""
    diagnosis = frame.diagnosis
    if diagnosis is None:
        return []
    if not diagnosis.ranks:
        return [Text("no rank has joined yet", style=DIM)]
    ranks = listed_ranks(frame, view)
    memory = _memory(frame, ranks, width, view)
    spent_in, longest = _spent(diagnosis.ranks)
    blamed = blamed_ranks(diagnosis, view.finding)
    sheet = _Sheet.fit(diagnosis, width, memory, longest, blamed)
    head = [legend(spent_in, width), sheet.head()]
    if view.filter is not None:
        note = format_left(len(ranks), len(diagnosis.ranks), "rank", view.filter)
        head.insert(0, Text(text.cut(note, width), style=NOTE))
    if waiting := summarize_busy_waiting(diagnosis.ranks):
        head.insert(0, Text(text.cut(waiting, width), style="yellow"))
    chosen = row_of_rank(view.rank, ranks)
    marked = row_of_culprit(diagnosis, ranks, view.finding) if chosen is None else chosen

    def row(place: int) -> Text:
        return sheet.row(ranks[place], chosen=place == chosen)

    return Rows(head, len(ranks), row, marked)


@kept
def _spent(ranks: Sequence[RankSummary]) -> tuple[frozenset[str], float]:
    """Returns the phases that occur, and the longest step in seconds."""
    spent = [phase_bars.measured_phases(rank.phases) for rank in ranks]
    return frozenset(name for phases in spent for name in phases), max(
        sum(phases.values()) for phases in spent
    )


def _memory(frame: Frame, ranks: Sequence[RankSummary], width: int, view: View) -> Memory | None:
    """Returns what the memory column needs; None unless ranks are sorted by it, or it is known and
    there is room."""
    if view.order is Order.MEMORY:
        return memory_of(frame)
    if width < MEMORY_FROM:
        return None
    memory = memory_of(frame)
    return memory if any(memory(rank) is not None for rank in ranks[:FIRST]) else None


@kept
def listed_ranks(frame: Frame, view: View) -> list[RankSummary]:
    """Returns the ranks in screen order."""
    memory = memory_of(frame) if view.order is Order.MEMORY else None
    return ordered(shown(frame, view.filter).ranks, view, memory)


def row_of_rank(who: RankKey | None, ranks: Sequence[RankSummary]) -> int | None:
    """Returns the row of a rank; None if it is not listed."""
    if who is None:
        return None
    return next((place for place, rank in enumerate(ranks) if RankKey.of(rank) == who), None)


def row_of_culprit(
    diagnosis: Diagnosis, ranks: Sequence[RankSummary], selected: int = 0
) -> int | None:
    """Returns the row of the first culprit. `selected`: which finding is."""
    blamed = blamed_ranks(diagnosis, selected)
    return next((place for place, rank in enumerate(ranks) if rank.rank in blamed), None)


def legend(used: Set[str], width: int) -> Text:
    """Returns the letters and colours of the phases that occur, as many as fit."""
    shown = Text()
    for name, phase in phase_bars.PHASE_STYLES.items():
        if name in used:
            shown.append(phase.letter, style=DIM if name == "wait" else phase.letter_style)
            shown.append(f" {name}  ", style=DIM)
    if not used:
        return Text("no step measured yet", style=DIM)
    shown.rstrip()
    shown.truncate(width, overflow="ellipsis")
    return shown


@dataclass(frozen=True, slots=True)
class _Sheet:
    """The table's dimensions: columns, cells of the bar and the code location, seconds of a full
    bar."""

    columns: Sequence[Column]
    room: int
    where: int
    scale: float
    blamed: Set[int | None]
    memory: Memory | None
    """None: not shown."""

    @classmethod
    def fit(
        cls,
        diagnosis: Diagnosis,
        width: int,
        memory: Memory | None,
        scale: float,
        blamed: Set[int | None],
    ) -> _Sheet:
        several = len({rank.host for rank in diagnosis.ranks}) > 1
        on_gpus = any(rank.run_ahead for rank in diagnosis.ranks)
        kept = {"host": several, "memory": memory is not None, AHEAD.title: on_gpus}
        dropped = {title for title, is_kept in kept.items() if not is_kept}
        wanted = [column for column in COLUMNS if column.title not in dropped]
        columns = fitting(wanted, width, SHORTEST_BAR)
        room = max(0, width - sum(column.width + 1 for column in columns))
        placed = any(rank.where and state(rank) != "exited" for rank in diagnosis.ranks)
        where = room // 3 if placed and width >= WHERE_FROM else 0
        return cls(
            columns=columns,
            room=room - where - bool(where),
            where=where,
            scale=scale,
            blamed=blamed,
            memory=memory,
        )

    def head(self) -> Text:
        shown = join_parts(cell(column.title, column, DIM) for column in self.columns)
        shown.append_text(cell(" where the time of a step goes", Column("", self.room + 1), DIM))
        if self.where:
            shown.append(" location", style=DIM)
        return shown

    def row(self, rank: RankSummary, *, chosen: bool) -> Text:
        guilty = rank.rank in self.blamed
        doing = state(rank)
        cells: dict[str, str | Text] = {
            "": Text("▸", style="bold red") if guilty else " ",
            "rank": UNKNOWN if rank.rank is None else str(rank.rank),
            "host": text.cut(text.line(rank.host), HOST.width),
            "pid": "-" if rank.pid is None else str(rank.pid),
            "state": Text(doing, style=STATES.get(doing, "bold red")),
            "step": UNKNOWN if rank.last_step is None else str(rank.last_step),
            "per step": format_seconds(rank.step_seconds_median),
            AHEAD.title: format_run_ahead(rank.run_ahead),
            "memory": format_bytes(self.memory(rank)) if self.memory else "",
        }
        style = "bold" if guilty else ""
        shown = join_parts(cell(cells[column.title], column, style) for column in self.columns)
        if chosen:
            shown.stylize("reverse")
        shown.append(" ")
        place = text.line(rank.where) if rank.where and doing != "exited" else ""
        stands = bool(place) and doing not in MOVING
        if stands and not self.where:
            how = "in" if place in PHASES else "at"
            shown.append(text.cut(f"{how} {place}", self.room), style="yellow")
        else:
            shown.append_text(
                _bar((*phase_bars.measured_phases(rank.phases).items(),), self.scale, self.room)
            )
        if self.where and place:
            shown.append(f" {text.cut(place, self.where)}", style="yellow" if stands else DIM)
        return shown


@lru_cache(1024)
def _bar(known: tuple[tuple[str, float], ...], scale: float, room: int) -> Text:
    """Returns the bar of a step. Cached: phases change only with a diagnosis."""
    return cell(bar(dict(known), scale, room), Column("", room))


def blamed_ranks(diagnosis: Diagnosis, selected: int = 0) -> set[int | None]:
    """Returns the ranks that the selected finding blames; if it blames none, those of the first
    finding that does. A finding that is only worth knowing blames no rank here."""
    findings = diagnosis.findings
    named = (
        {culprit.rank for culprit in finding.culprits} - {None}
        for finding in (*findings[selected : selected + 1], *findings)
        if finding.severity is not Severity.INFO
    )
    return next(filter(None, named), set())
