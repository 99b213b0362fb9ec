"""The panels of the main screen. Those of the machine's history and those of a job are made, and
their modules imported, when a frame has something for them: the first frame is earlier, and a
machine without a job needs less memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, ClassVar

from textual.binding import Binding, BindingType
from textual.screen import Screen

from mgpu_doctor.live.frame import Frame
from mgpu_doctor.tui import panels
from mgpu_doctor.tui.jobs.greeting import Greeting
from mgpu_doctor.tui.panel import Panel, Room
from mgpu_doctor.tui.panel_layout import LEAST_SPARE
from mgpu_doctor.tui.panels import gpu_table, header
from mgpu_doctor.tui.row_selection import GpusPanel

WHOLE = 1 << 10
"""A panel's minimum: all its lines."""

# A weight is the panel's lines on an 80 × 24 screen when every panel wants more, doubled. The
# minimum height shows one row below title, legend and head.


class MainScreen(Screen[Any]):
    """The screen below all pages. Textual would focus its first panel as soon as one is shown; the
    one whose keys work at once may come later (`focus_first`)."""

    AUTO_FOCUS = ""
    BINDINGS: ClassVar[list[BindingType]] = [Binding("tab", "app.focus_next", "panel")]


def focus_first(main_panels: Sequence[Panel]) -> None:
    """Focuses the panel whose keys work at once; if it is not shown, the first one. Does nothing
    until the panels of the machine or of a job are there."""
    if any(panel.TAKES_FOCUS for panel in main_panels):
        reachable = [panel for panel in main_panels if panel.can_focus and panel.display]
        for first in sorted(reachable, key=lambda panel: not panel.TAKES_FOCUS)[:1]:
            first.focus()


def first_panels() -> Iterator[Panel]:
    """Yields the panels that every frame has something for."""
    yield Panel(header.header_lines, id="head")
    yield Panel(header.host_lines, id="host")
    yield Panel(Greeting.of_this_machine().lines, id="greeting", room=Room(2))
    yield GpusPanel(
        gpu_table.gpu_lines,
        "GPUs",
        id="gpus",
        entitle=header.gpus_title,
        room=Room(10, 3),
        compact=gpu_table.compact_lines,
    )


def add_panels(screen: Screen[None], frame: Frame) -> bool:
    """Adds the panels that a frame has something for and the main screen lacks. Returns whether
    there were any."""
    known = {child.id for child in screen.children}
    if frame.diagnosis is not None:
        is_new = "findings" not in known
        if is_new:
            _add_job_panels(screen)
    else:
        is_new = "processes" not in known and bool(frame.history or frame.processes)
        if is_new:
            screen.mount(*_machine_panels(), after="#gpus")
    return is_new


def _machine_panels() -> Iterator[Panel]:
    from mgpu_doctor.tui.machine_panels import GraphsPanel, ProcessesPanel
    from mgpu_doctor.tui.panels import machine_graphs, process_table

    yield GraphsPanel(
        machine_graphs.machine_lines,
        "Machine",
        id="machine",
        room=Room(6, WHOLE),
        reachable=False,
        compact=partial(machine_graphs.machine_lines, height=machine_graphs.LOW),
    )
    yield ProcessesPanel(
        process_table.process_lines,
        "Processes",
        id="processes",
        entitle=header.processes_title,
        room=Room(6, 3),
    )


def _add_job_panels(screen: Screen[None]) -> None:
    from textual.containers import Container

    from mgpu_doctor.tui.job_panels import FindingsPanel, RanksPanel
    from mgpu_doctor.tui.machine_panels import GraphsPanel
    from mgpu_doctor.tui.map_panel import MapPanel
    from mgpu_doctor.tui.panels import machine_graphs

    ranks_by_host = MapPanel(
        panels.draw_map, "Ranks by host", id="map", entitle=header.map_title, room=Room(13, 4)
    )
    work = Container(id="work")
    ranks = RanksPanel(
        panels.draw_ranks, "Ranks", id="ranks", entitle=header.ranks_title, room=Room(14, 4)
    )
    heat = Panel(
        panels.draw_heatmap, "Steps", id="heat", entitle=header.steps_title, room=Room(6, 3)
    )
    findings = FindingsPanel(
        panels.draw_findings,
        "Findings",
        id="findings",
        entitle=header.findings_title,
        room=Room(6, 2),
    )
    details = Panel(
        panels.draw_selected_finding,
        "Selected finding",
        id="details",
        room=Room(1, LEAST_SPARE, spare=True),
    )
    machine = GraphsPanel(
        machine_graphs.job_machine_lines,
        "Machine",
        id="job-machine",
        room=Room(1, WHOLE, spare=True),
        reachable=False,
        compact=partial(machine_graphs.job_machine_lines, height=machine_graphs.LOW),
    )
    screen.mount(ranks_by_host, before="#gpus")
    screen.mount(machine, after="#gpus")
    screen.mount(work, findings, details, before="KeyHints")
    work.mount(ranks, heat)  # children given to a container exist only later
