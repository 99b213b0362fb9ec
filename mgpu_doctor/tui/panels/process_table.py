"""The table of processes, while no job is shown: who uses which GPU, and the machine. Pure."""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.text import Text

from mgpu_doctor.formatting import UNKNOWN, format_bytes
from mgpu_doctor.live.frame import Frame
from mgpu_doctor.report import text
from mgpu_doctor.tui.filter.matching import format_left, gpus, kept_by
from mgpu_doctor.tui.panels.table_cells import (
    DIM,
    NOTE,
    Column,
    Rows,
    assemble,
    cell,
    fitting,
    join_parts,
)
from mgpu_doctor.tui.view import ProcessOrder, Row, View

if TYPE_CHECKING:
    from mgpu_doctor.live.process_list import ListedProcess

PID = Column("pid", 7, right=True)
USER = Column("user", 9, rank=2)
GPU = Column("gpu", 6, right=True)
GPU_MEMORY = Column("gpu mem", 8, right=True)
CPU = Column("cpu", 6, right=True)
MEMORY = Column("memory", 8, right=True)
AGE = Column("age", 8, right=True, rank=3)
COLUMNS = (PID, USER, GPU, GPU_MEMORY, CPU, MEMORY, AGE)
LEAST_COMMAND = 20
"""Cells that the command has at least, while columns can be left out for it."""
BUSY = 0.5
"""Cores from which a process's CPU use is emphasized."""
INDENT = 2

TITLES = {
    ProcessOrder.GPU: GPU.title,
    ProcessOrder.GPU_MEMORY: GPU_MEMORY.title,
    ProcessOrder.CPU: CPU.title,
    ProcessOrder.MEMORY: MEMORY.title,
    ProcessOrder.AGE: AGE.title,
    ProcessOrder.PID: PID.title,
    ProcessOrder.USER: USER.title,
}
"""The column by which processes are sorted."""
Value = Callable[["ListedProcess"], Any]
"""A process's value in an order; None: unknown."""
ASCENDING: Mapping[ProcessOrder, Value] = {
    ProcessOrder.GPU: lambda one: one.gpus or None,
    ProcessOrder.AGE: lambda one: one.started,
    ProcessOrder.PID: lambda one: one.pid,
    ProcessOrder.USER: lambda one: one.user,
}
DESCENDING: Mapping[ProcessOrder, Value] = {
    ProcessOrder.GPU_MEMORY: lambda one: one.gpu_memory,
    ProcessOrder.CPU: lambda one: one.cores,
    ProcessOrder.MEMORY: lambda one: one.resident,
}


def _made_of(frame: Frame, width: int, view: View) -> tuple[object, ...]:
    """Returns the inputs of the table. Ages are those at the last reading of the processes, like
    the other columns."""
    return frame.processes, width, view


@kept_by(_made_of)
def process_lines(frame: Frame, width: int, view: View) -> Sequence[Text]:
    """Returns the table; empty while a job is shown, or before processes were read."""
    if frame.diagnosis is not None or not frame.processes:
        return []
    rows = listed_processes(frame, view)
    columns = fitting(COLUMNS, width, LEAST_COMMAND)
    sorted_by = TITLES.get(view.process_order)
    heads = (
        cell(column.title, column, "bold" if column.title == sorted_by else DIM)
        for column in columns
    )
    head = [join_parts(heads).append("  command", DIM)]
    head[0].truncate(width, overflow="ellipsis")
    if view.filter is not None:
        note = format_left(len(rows), len(frame.processes), "process", view.filter)
        head.insert(0, Text(text.cut(note, width), style=NOTE))

    def make(place: int) -> Text:
        process, depth = rows[place]
        made = _row(process, depth, columns, frame.at)
        if process.pid == view.process:
            made.stylize("reverse", 0, PID.width)
        made.truncate(width, overflow="ellipsis")
        return made

    chosen = (place for place, (one, _) in enumerate(rows) if one.pid == view.process)
    return Rows(head, len(rows), make, next(chosen, None))


def listed_processes(frame: Frame, view: View) -> list[tuple[ListedProcess, int]]:
    """Returns the processes that match the filter, as sorted, each with its depth in the tree."""
    devices = {gpu.which.number: gpu.device for gpu in gpus(frame)}
    left = [
        process
        for process in frame.processes
        if view.filter is None
        or view.filter.matches(
            Row(
                device=devices.get(process.gpus[0]) if process.gpus else None,
                pids=(process.pid,),
                host=frame.host.host if frame.host else None,
                user=process.user,
                command=_command(process),
            )
        )
    ]
    if view.process_order is ProcessOrder.TREE:
        return _tree(left, backwards=view.processes_reversed)
    return [(process, 0) for process in _sorted(left, view)]


def _sorted(processes: Sequence[ListedProcess], view: View) -> list[ListedProcess]:
    """Returns the processes in the view's order; of equals, the busiest first; unknown ones
    last."""
    order = view.process_order
    value = ASCENDING.get(order) or DESCENDING[order]
    busiest = sorted(processes, key=lambda one: -(one.cores or 0.0))
    known = [process for process in busiest if value(process) is not None]
    known.sort(key=value, reverse=(order in DESCENDING) != view.processes_reversed)
    return known + [process for process in busiest if value(process) is None]


def _tree(
    processes: Sequence[ListedProcess], *, backwards: bool
) -> list[tuple[ListedProcess, int]]:
    known = {process.pid for process in processes}
    children: dict[int | None, list[ListedProcess]] = defaultdict(list)
    for process in sorted(processes, key=lambda one: one.pid, reverse=not backwards):
        children[process.parent if process.parent in known else None].append(process)
    rows: list[tuple[ListedProcess, int]] = []
    stack = [(process, 0) for process in children[None]]
    while stack:
        process, depth = stack.pop()
        rows.append((process, depth))
        stack += [(child, depth + 1) for child in children[process.pid] if child.pid != process.pid]
    return rows


def _row(process: ListedProcess, depth: int, columns: Sequence[Column], at: float) -> Text:
    age = None if process.started is None else max(0.0, at - process.started)
    busy = process.cores is not None and process.cores >= BUSY
    cells = {
        PID: str(process.pid),
        USER: text.line(process.user or UNKNOWN),
        GPU: ",".join(map(str, process.gpus)) or "-",
        GPU_MEMORY: format_bytes(process.gpu_memory) if process.gpus else "-",
        CPU: UNKNOWN if process.cores is None else f"{100 * process.cores:.0f} %",
        MEMORY: format_bytes(process.resident),
        AGE: UNKNOWN if age is None else format_age(age),
    }
    styles = {CPU: "bold green" if busy else "", GPU: "bold cyan" if process.gpus else DIM}
    parts = [cell(cells[column], column, styles.get(column, "")) for column in columns]
    branch = " " * (INDENT * depth) + ("└ " if depth else "")
    command = assemble((" ", ""), (branch, DIM), (_command(process) or UNKNOWN, ""))
    return join_parts([*parts, command])


def format_age(seconds: float) -> str:
    """Returns `7 s`, `14 min`, `1 h 27`, `3 d 4 h`."""
    minutes, hours = int(seconds // 60), int(seconds // 3600)
    if not minutes:
        return f"{seconds:.0f} s"
    if not hours:
        return f"{minutes} min"
    return f"{hours} h {minutes % 60:02d}" if hours < 24 else f"{hours // 24} d {hours % 24} h"


def _command(process: ListedProcess) -> str:
    return text.line(shlex.join(process.command))
