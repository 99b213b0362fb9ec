"""The list of training jobs that run here; Enter attaches to one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import ClassVar

from rich.text import Text
from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, Static

from mgpu_doctor.case.gpu import DeviceSample
from mgpu_doctor.report import text
from mgpu_doctor.tui.start.listing import Listed, gpus_of, jobs_here
from mgpu_doctor.tui.start.opening import offer_stop

EVERY = 2.0
"""Seconds between two looks at the machine."""
LEAST_REST = 50.0
"""Rests so many times as long as a look took: 2 % of a core at most."""
NOBODY = "No training job runs on this machine. n on the first screen starts one."
COLUMNS = {
    "seen": 4, "pid": 7, "user": 8, "ranks": 6, "by": 9, "in": 10, "age": 10, "GPUs": 6,
}  # fmt: skip
"""Titles and widths; the command takes what is left. `seen`: whether it is under observation."""


class AttachScreen(ModalScreen[Listed | None]):
    """Gives the job that was chosen. `find`: lists them, in a thread; `devices`: the GPUs as they
    were last seen."""

    DEFAULT_CSS = """
    AttachScreen > Vertical { background: $surface; border: round $accent; padding: 0 1; }
    AttachScreen DataTable { height: 1fr; overflow-x: hidden; }
    AttachScreen VerticalScroll { height: 8; border-top: solid $primary-darken-1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "attach", "attach", priority=True),
        Binding("x", "stop", "stop it"),
        Binding("escape,q", "leave", "back"),
    ]

    def __init__(
        self,
        find: Callable[[], tuple[Listed, ...]] = jobs_here,
        devices: Callable[[], DeviceSample | None] = lambda: None,
        *,
        readonly: bool = False,
    ) -> None:
        super().__init__()
        self._find = find
        self._devices = devices
        self._readonly = readonly
        self._listed: tuple[Listed, ...] | None = None
        self._leaving = threading.Event()

    def compose(self) -> ComposeResult:
        with Vertical() as page:
            page.border_title = "Training jobs on this machine"
            yield DataTable(cursor_type="row", cell_padding=0)
            with VerticalScroll(can_focus=False):
                yield Static("looking…", id="told", markup=False)
        yield Footer(compact=True)

    def on_mount(self) -> None:
        table = self._table
        for title, width in COLUMNS.items():
            table.add_column(title, width=width + 1, key=title)
        table.add_column("command", key="command")
        table.focus()
        self._look()

    def on_unmount(self) -> None:
        self._leaving.set()

    @property
    def _table(self) -> DataTable[Text]:
        return self.query_one(DataTable)

    @work(thread=True, name="jobs", exit_on_error=False)
    def _look(self) -> None:
        while not self._leaving.is_set():
            began = time.thread_time()
            listed = self._find()
            took = time.thread_time() - began
            if self._leaving.is_set():
                return
            self.app.call_from_thread(self._show, listed)
            self._leaving.wait(max(EVERY, LEAST_REST * took))

    def _show(self, listed: tuple[Listed, ...]) -> None:
        if not self.is_attached:
            return
        chosen = self._chosen
        self._listed = listed
        table = self._table
        devices = self._devices()
        table.clear()
        for job in listed:
            table.add_row(*_cells(job, gpus_of(job, devices)), key=job.subject)
        subjects = [job.subject for job in listed]
        if chosen is not None and chosen.subject in subjects:
            table.move_cursor(row=subjects.index(chosen.subject))
        self._tell()

    @property
    def _chosen(self) -> Listed | None:
        listed = self._listed or ()
        row = self._table.cursor_row
        return listed[row] if 0 <= row < len(listed) else None

    def on_data_table_row_highlighted(self) -> None:
        self._tell()

    def on_data_table_row_selected(self) -> None:
        self.action_attach()

    def _tell(self) -> None:
        if self._listed is not None:
            told = self.query_one("#told", Static)
            told.update(details(self._chosen) if self._chosen is not None else Text(NOBODY))

    def action_attach(self) -> None:
        if self._chosen is not None:
            self.dismiss(self._chosen)

    def action_stop(self) -> None:
        if self._chosen is not None:
            offer_stop(self.app, self._chosen.subject, readonly=self._readonly)

    def action_leave(self) -> None:
        self.dismiss(None)


def details(job: Listed) -> Text:
    """All that is known of a job that has no room in its line, and what cannot be seen."""
    told = Text(text.line(job.command), style="bold")
    if job.recording is not None:
        told.append(f"\nunder observation: {text.line(str(job.recording))}", style="not bold")
    if job.container is not None:
        told.append(f"\nin container {text.line(job.container)}", style="not bold")
    for sentence in job.unseen:
        told.append(f"\n{text.line(sentence)}", style="not bold yellow")
    return told


def _cells(job: Listed, gpus: str) -> list[Text]:
    known = {
        "seen": "yes" if job.recording is not None else "no",
        "pid": str(job.pid),
        "user": job.user,
        "ranks": _ranks(job),
        "by": job.launcher,
        "in": job.framework,
        "age": None if job.age is None else text.seconds(float(int(job.age))),
        "GPUs": gpus or "-",
    }
    cells = [
        Text(text.cut(text.line(known[title] or text.UNKNOWN), width))
        for title, width in COLUMNS.items()
    ]
    program, _, rest = text.line(job.command).partition(" ")
    return [*cells, Text(text.cut(f"{program.rpartition('/')[2]} {rest}", 200))]


def _ranks(job: Listed) -> str | None:
    if job.ranks is None:
        return None
    world = job.world_size
    return f"{job.ranks}" if world in (None, job.ranks) else f"{job.ranks} of {world}"
