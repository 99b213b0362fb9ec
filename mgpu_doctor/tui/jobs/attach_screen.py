"""The list of training jobs on this machine, and attaching to one of them."""

from __future__ import annotations

import os
import shlex
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from mgpu_probes.outside import jobs, processes
from mgpu_probes.outside.jobs import RunningJob
from mgpu_probes.outside.stacks import ptrace_permission
from rich.text import Text
from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import DataTable, Static

from mgpu_doctor.case.device_samples import DeviceSample
from mgpu_doctor.case.untrusted_json import read_object
from mgpu_doctor.formatting import UNKNOWN
from mgpu_doctor.recording.layout import INFO
from mgpu_doctor.recording.live_recordings import living
from mgpu_doctor.report import text
from mgpu_doctor.report.command_names import find_script
from mgpu_doctor.tui.jobs.stopping import offer_stop
from mgpu_doctor.tui.keys import KeyHints
from mgpu_doctor.tui.panels.process_table import format_age
from mgpu_doctor.tui.panels.table_cells import Column, fitting

MOST_LISTED = 64
MOST_MAPS = 1 << 20
"""Bytes of proc_pid_maps(5) that are searched for a framework's library."""
MOST_ABOVE = 16
TICKS = os.sysconf("SC_CLK_TCK")
LIBRARIES = {b"/libtorch": "torch", b"tensorflow": "tensorflow", b"/libjax": "jax"}
MOST_KNOWN = 512
_FRAMEWORKS: dict[tuple[int, int], str] = {}
"""(pid, start ticks) of a rank -> the framework it has loaded."""
NOT_OBSERVED = (
    "It was not started under observation: its steps and its output cannot be seen, its processes "
    "and their stacks can. Start it with `mgpu-doctor run -- COMMAND` next time."
)


@dataclass(frozen=True, slots=True)
class Listed:
    """A job on this machine. `recording`: its folder; None if it is not observed."""

    pid: int
    command: str
    recording: Path | None = None
    ranks: int | None = None
    """Ranks on this host; None if not known yet."""
    world_size: int | None = None
    framework: str | None = None
    launcher: str | None = None
    user: str | None = None
    container: str | None = None
    age: float | None = None
    """Seconds since it started."""
    pids: frozenset[int] = frozenset()
    unseen: tuple[str, ...] = ()
    """What cannot be observed, why, and what to do: one sentence each."""

    @property
    def subject(self) -> str:
        """The job's name for `mgpu-doctor diagnose`."""
        return str(self.recording) if self.recording is not None else str(self.pid)


def jobs_here() -> tuple[Listed, ...]:
    """Returns every training job on this machine, observed ones first. One pass over /proc."""
    running_jobs = list(jobs.find_all())
    listed = []
    for recording in living():
        info = _info(recording)
        pid = info.get("job_pid")
        if isinstance(pid, int):
            own = next(
                (running_job for running_job in running_jobs if _belongs(running_job, pid)), None
            )
            if own is not None:
                running_jobs.remove(own)
            listed.append(_recorded(recording, info, pid, own))
    listed += [_outside(job) for job in running_jobs]
    return tuple(listed[:MOST_LISTED])


def gpus_of(job: Listed, devices: DeviceSample | None) -> str:
    """Returns the indices of the GPUs that its processes use; empty if none or unknown."""
    known = devices.devices if devices is not None else ()
    return ",".join(str(device.index) for device in known if job.pids.intersection(device.pids))


def _belongs(job: RunningJob, pid: int) -> bool:
    """Returns whether the process belongs to the job or is its ancestor (a shell script, `uv
    run`)."""
    if any(process.pid == pid for process in job.processes):
        return True
    above = job.processes[0].parent if job.processes else 0
    for _ in range(MOST_ABOVE):
        if above == pid:
            return True
        owner = processes.read_process(above) if above > 1 else None
        if owner is None:
            return False
        above = owner.parent
    return False


def _recorded(
    recording: Path, info: dict[str, object], pid: int, running_job: RunningJob | None
) -> Listed:
    words, started = info.get("command"), info.get("started")
    command = [str(word) for word in words] if isinstance(words, list) else []
    own = os.geteuid()
    return Listed(
        pid=pid,
        command=shlex.join(command),
        recording=recording,
        ranks=len(running_job.ranks) if running_job is not None else None,
        world_size=running_job.world_size if running_job is not None else None,
        framework=_framework(running_job) if running_job is not None else None,
        launcher=running_job.launcher if running_job is not None else None,
        user=ptrace_permission.name_user(own),
        container=_container(running_job) if running_job is not None else None,
        age=max(0.0, time.time() - started) if isinstance(started, (int, float)) else None,
        pids=_pids(running_job) if running_job is not None else frozenset(),
    )


def _outside(job: RunningJob) -> Listed:
    first = next(
        (process for process in job.processes if process.pid == job.launcher_pid), job.processes[0]
    )
    oldest = min(process.start_ticks for process in job.processes)
    return Listed(
        pid=first.pid,
        command=shlex.join(first.command) or first.name,
        ranks=len(job.ranks),
        world_size=job.world_size,
        framework=_framework(job),
        launcher=job.launcher,
        user=first.user
        or (ptrace_permission.name_user(first.uid) if first.uid is not None else None),
        container=_container(job),
        age=max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - oldest / TICKS),
        pids=_pids(job),
        unseen=(*_unread(job), NOT_OBSERVED),
    )


def _unread(job: RunningJob) -> tuple[str, ...]:
    """Returns each reason once: most apply to every rank."""
    sentences = (f"{part.source}: {part.reason}; {part.remedy}." for part in job.unread)
    return tuple(dict.fromkeys(sentences))


def _pids(job: RunningJob) -> frozenset[int]:
    """Returns the pids in this host's namespace, as NVML lists them."""
    return frozenset(process.pid for process in job.processes)


def _container(job: RunningJob) -> str | None:
    return next(
        (process.container for process in job.processes if process.container is not None), None
    )


def _framework(job: RunningJob) -> str | None:
    """Returns the framework, from the libraries that the first rank has loaded."""
    key = next(((rank.pid, rank.start_ticks) for rank in job.ranks), None)
    if key is None:
        return None
    if key not in _FRAMEWORKS and (text := _mapped(key[0])) is not None:
        if len(_FRAMEWORKS) >= MOST_KNOWN:
            _FRAMEWORKS.clear()
        _FRAMEWORKS[key] = text  # a loaded library stays loaded; others are checked again
    return _FRAMEWORKS.get(key)


def _mapped(pid: int) -> str | None:
    seen = b""
    try:
        with open(f"/proc/{pid}/maps", "rb", buffering=0) as file:
            while len(seen) < MOST_MAPS and (part := file.read(1 << 16)):
                seen += part
    except OSError:
        return None
    return next((name for library, name in LIBRARIES.items() if library in seen), None)


def _info(recording: Path) -> dict[str, object]:
    try:
        return read_object(recording / INFO, root=recording)
    except (OSError, ValueError):
        return {}


EVERY = 2.0
"""Seconds between two scans of the machine."""
LEAST_REST = 50.0
"""Sleeps this many times as long as a scan took: at most 2 % of a core."""
NOBODY = "No training job is running on this machine. Press n on the first screen to start one."
COLUMNS = (
    Column("observed", 8),
    Column("pid", 7),
    Column("user", 8),
    Column("ranks", 6),
    Column("launcher", 9, rank=1),
    Column("framework", 10, rank=2),
    Column("age", 8),
    Column("GPUs", 6),
)
"""The command takes the remaining width."""
LEAST_COMMAND = 20
"""Cells that the command has at least, while columns can be left out for it."""


class AttachScreen(ModalScreen[Listed | None]):
    """Returns the chosen job. `find`: lists jobs, in a thread. `devices`: the last sample of the
    GPUs."""

    DEFAULT_CSS = """
    AttachScreen > Vertical { background: $surface; border: round $accent; padding: 0 1; }
    AttachScreen DataTable { height: 1fr; overflow-x: hidden; }
    AttachScreen VerticalScroll { height: 8; border-top: solid $primary-darken-1; }
    AttachScreen DataTable, AttachScreen VerticalScroll {
        scrollbar-size-vertical: 1;
        scrollbar-gutter: stable;
    }
    AttachScreen Static { padding-right: 1; }
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
                yield Static("looking…", id="details", markup=False)
        yield KeyHints()

    def on_mount(self) -> None:
        self._table.focus()
        self._refresh()

    def on_resize(self) -> None:
        if self._listed is not None:
            self.call_after_refresh(self._show, self._listed)

    def on_unmount(self) -> None:
        self._leaving.set()

    @property
    def _table(self) -> DataTable[Text]:
        return self.query_one(DataTable)

    @work(thread=True, name="jobs", exit_on_error=False)
    def _refresh(self) -> None:
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
        room = table.scrollable_content_region.width - 1  # what is left of the scroll bar
        columns = fitting(COLUMNS, room, LEAST_COMMAND)
        command = max(1, room - sum(column.width + 1 for column in columns))
        table.clear(columns=True)
        for column in columns:
            table.add_column(column.title, width=column.width + 1)
        table.add_column("command", width=command + 1)
        for job in listed:
            cells = _cells(job, gpus_of(job, devices), columns)
            script = _begun(_script(job.command), command)
            table.add_row(*cells, script, key=job.subject)
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
            static = self.query_one("#details", Static)
            static.update(details(self._chosen) if self._chosen is not None else Text(NOBODY))

    def action_attach(self) -> None:
        if self._chosen is not None:
            self.dismiss(self._chosen)

    def action_stop(self) -> None:
        if self._chosen is not None:
            offer_stop(self.app, self._chosen.subject, readonly=self._readonly)

    def action_leave(self) -> None:
        self.dismiss(None)


def details(job: Listed) -> Text:
    """Returns what is known of a job beyond its row, and what cannot be observed."""
    lines = Text(text.line(job.command), style="bold")
    software = " under ".join(filter(None, (job.framework, job.launcher)))
    if software:
        lines.append(f"\n{text.line(software)}", style="not bold")
    if job.recording is not None:
        lines.append(f"\nunder observation: {text.line(str(job.recording))}", style="not bold")
    if job.container is not None:
        lines.append(f"\nin container {text.line(job.container)}", style="not bold")
    for sentence in job.unseen:
        lines.append(f"\n{text.line(sentence)}", style="not bold yellow")
    return lines


def _cells(job: Listed, gpus: str, columns: Sequence[Column]) -> list[Text]:
    known = {
        "observed": "yes" if job.recording is not None else "no",
        "pid": str(job.pid),
        "user": job.user,
        "ranks": _ranks(job),
        "launcher": job.launcher,
        "framework": job.framework,
        "age": None if job.age is None else format_age(job.age),
        "GPUs": gpus or "-",
    }
    return [_begun(known[column.title] or UNKNOWN, column.width) for column in columns]


def _begun(words: str, width: int) -> Text:
    """Returns the first `width` cells, with an ellipsis if there are more."""
    begun = Text(text.line(words))
    begun.truncate(width, overflow="ellipsis")
    return begun


def _script(command: str) -> str:
    """Returns a command from its script on: there is little room, and launchers are all alike."""
    try:
        return " ".join(find_script(shlex.split(command)))
    except ValueError:  # a title that a process gave itself
        return command


def _ranks(job: Listed) -> str | None:
    if job.ranks is None:
        return None
    world = job.world_size
    return f"{job.ranks}" if world in (None, job.ranks) else f"{job.ranks} of {world}"
