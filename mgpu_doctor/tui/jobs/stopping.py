"""Stopping a job: SIGINT, then SIGTERM, and SIGKILL only if asked again."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from mgpu_probes.outside import jobs, processes
from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Static

from mgpu_doctor.case.untrusted_json import read_object
from mgpu_doctor.live.process_list import ListedProcess
from mgpu_doctor.recording.layout import INFO
from mgpu_doctor.report import text
from mgpu_doctor.tui.keys import NO_JOB, READONLY

ANOTHERS = "it belongs to another user: only its owner can stop it."
TERM_AFTER = 10.0
"""Seconds from SIGINT to SIGTERM: time for a handler to write a checkpoint. torchrun gives its
workers 30 s after SIGTERM."""


@dataclass(frozen=True, slots=True)
class TargetProcess:
    """One process. `start_ticks`: clock ticks since boot at its start; detects a reused pid."""

    pid: int
    start_ticks: int

    @property
    def alive(self) -> bool:
        return processes.is_alive(self.pid, self.start_ticks)


@dataclass(frozen=True, slots=True)
class Aim:
    """A job to stop. `asked`: processes that get SIGINT and SIGTERM and forward them. `roots`:
    processes that SIGKILL ends with their descendants."""

    name: str
    asked: tuple[TargetProcess, ...]
    roots: tuple[TargetProcess, ...]

    @property
    def alive(self) -> bool:
        """Whether one of its processes still runs."""
        return any(who.alive for who in (*self.asked, *self.roots))


def aim_at_recording(recording: Path) -> Aim | str:
    """Returns the job of a recording, or a sentence why it cannot be stopped."""
    try:
        info = read_object(recording / INFO, root=recording)
    except (OSError, ValueError):
        return f"{recording.name} does not say which process its job is."
    if info.get("host") != os.uname().nodename:
        return "the job runs on another host: stop it there."
    if recording.stat().st_uid != os.geteuid():
        return ANOTHERS
    if info.get("boot_id") != processes.boot_id():
        return "the job ran before this machine was started."
    job = _who(info.get("job_pid"), info.get("job_start_ticks"))
    if job is None:
        return "the job has ended."
    doctor = processes.read_process(parent) if (parent := _parent(job.pid)) else None
    observed = doctor is not None and doctor.pid == info.get("doctor_pid")
    asked = (TargetProcess(doctor.pid, doctor.start_ticks),) if doctor and observed else (job,)
    return _ours(Aim(recording.name, asked, (job,)))


def aim_at_process(pid: int) -> Aim | str:
    """Returns the job that a process belongs to, or a sentence why it cannot be stopped."""
    job = jobs.find(pid)
    if job is None:
        return f"{jobs.unseen(pid)}."
    ranks = [rank for rank in job.ranks if rank.state not in "ZX"]
    first = [process for process in job.processes if process.pid == job.launcher_pid] or ranks
    asked = tuple(TargetProcess(job_process.pid, job_process.start_ticks) for job_process in first)
    if not asked:
        return "no process of the job is left."
    rest = tuple(TargetProcess(rank.pid, rank.start_ticks) for rank in ranks if rank not in first)
    return _ours(Aim(f"process {pid}", asked, (*asked, *rest)))


def send(aim: Aim, number: signal.Signals) -> str | None:
    """Sends SIGINT or SIGTERM to the `asked` processes, SIGKILL to all. Returns a sentence if that
    fails."""
    whom = _families(aim.roots) if number is signal.SIGKILL else aim.asked
    try:
        for who in whom:
            _send(who, number)
    except OSError as error:
        return f"{number.name} cannot be sent to {aim.name} ({error.strerror})."
    return None


def _send(who: TargetProcess, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        descriptor = os.pidfd_open(who.pid)
        try:
            if who.alive:  # checked while the descriptor is open, so the pid is not a reused one
                signal.pidfd_send_signal(descriptor, number)
        finally:
            os.close(descriptor)


def _families(roots: Iterable[TargetProcess]) -> list[TargetProcess]:
    families = {}
    for root in roots:
        if root.alive:
            families[root.pid] = root
            for child in processes.list_descendants(root.pid):
                families[child.pid] = TargetProcess(child.pid, child.start_ticks)
    return list(families.values())


def _ours(aim: Aim) -> Aim | str:
    for part in (*aim.asked, *aim.roots):
        try:
            owner = os.stat(f"/proc/{part.pid}").st_uid
        except OSError:
            continue
        if owner != os.geteuid():
            return ANOTHERS
    return aim


def _who(pid: object, ticks: object) -> TargetProcess | None:
    if not isinstance(pid, int) or pid <= 0 or not isinstance(ticks, int):
        return None
    return TargetProcess(pid, ticks) if processes.is_alive(pid, ticks) else None


def _parent(pid: int) -> int | None:
    process = processes.read_process(pid)
    return process.parent if process is not None and process.parent > 1 else None


def aim_at_listed(process: ListedProcess) -> Aim | str:
    """Returns a process of the list and its descendants, or a sentence why it cannot be stopped."""
    if process.start_ticks is None:
        return (
            f"process {process.pid} is not seen here: it has ended, or is outside this container."
        )
    if not processes.is_alive(process.pid, process.start_ticks):
        return f"process {process.pid} has ended."
    target = TargetProcess(process.pid, process.start_ticks)
    name = text.cut(text.line(" ".join(process.command)), 200)
    return _ours(Aim(f"process {process.pid}: {name}", (target,), (target,)))


GLANCE = 0.25
Send = Callable[[Aim, signal.Signals], str | None]


class StopScreen(ModalScreen[bool]):
    """Returns whether the job has ended. `after`: seconds from SIGINT to SIGTERM, and from there to
    the offer of SIGKILL."""

    DEFAULT_CSS = """
    StopScreen { align: center middle; }
    StopScreen > Vertical {
        width: 90%; max-width: 76; height: auto;
        background: $surface; border: round $error; padding: 0 1;
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "yes", "yes"),
        Binding("k", "kill", "SIGKILL"),
        Binding("escape,n,q", "leave", "leave"),
    ]

    def __init__(self, aim: Aim, *, after: float = TERM_AFTER, sender: Send = send) -> None:
        super().__init__()
        self._aim = aim
        self._after = after
        self._send = sender
        self._sent: list[tuple[signal.Signals, float]] = []
        self._wants_kill = False

    def compose(self) -> ComposeResult:
        with Vertical() as page:
            page.border_title = "Stop"
            yield Static(id="said", markup=False)

    def on_mount(self) -> None:
        self._tell(
            f"Stop {text.line(self._aim.name)}?\n\n"
            f"It gets SIGINT, as by Ctrl-C; if it still runs after {self._after:.0f} s, SIGTERM.\n"
            "y: stop it   escape: leave it alone"
        )

    def action_yes(self) -> None:
        if self._wants_kill:
            self._wants_kill = False
            self._signal(signal.SIGKILL)
        elif not self._sent:
            self.set_interval(GLANCE, self._watch)
            self._signal(signal.SIGINT)

    def action_kill(self) -> None:
        if self._may_kill:
            self._wants_kill = True
            self._tell(
                "Kill it and all its processes now? Nothing of it can save its work, and what it "
                "shares with others (files, GPUs' memory) is left as it is.\n\n"
                "y: SIGKILL   escape: leave"
            )
        else:
            self.notify("SIGKILL only after SIGTERM has not helped: y begins.", markup=False)

    def action_leave(self) -> None:
        if self._wants_kill:
            self._wants_kill = False
            self._watch()
        else:
            self.dismiss(not self._aim.alive)

    @property
    def _may_kill(self) -> bool:
        return bool(self._sent) and self._sent[-1][0] is not signal.SIGINT and self._rest <= 0

    @property
    def _rest(self) -> float:
        """Returns the seconds until the next signal is allowed."""
        return self._after - (time.monotonic() - self._sent[-1][1])

    def _signal(self, number: signal.Signals) -> None:
        wrong = self._send(self._aim, number)
        if wrong is not None:
            self._tell(wrong)
            self._sent.append((number, float("inf")))
            return
        self._sent.append((number, time.monotonic()))
        self._watch()

    def _watch(self) -> None:
        number, at = self._sent[-1]
        if self._wants_kill or at == float("inf"):
            return
        if not self._aim.alive:
            self.dismiss(True)
        elif self._rest > 0:
            following = "SIGTERM" if number is signal.SIGINT else "SIGKILL can be requested"
            self._tell(
                f"{number.name} was sent; it still runs.\n\n"
                f"{following} in {self._rest:.0f} s   escape: leave it at {number.name}"
            )
        elif number is signal.SIGINT:
            self._signal(signal.SIGTERM)
        else:
            self._tell(
                f"It still runs, {self._after:.0f} s after {number.name}.\n\n"
                "k: kill it with SIGKILL   escape: leave"
            )

    def _tell(self, sentence: str) -> None:
        self.query_one("#said", Static).update(Text(sentence))


def offer_end(app: App[Any], process: ListedProcess | None, *, readonly: bool) -> None:
    """Asks the user whether to stop a process of the list."""
    if readonly or process is None:
        app.notify(READONLY if readonly else "the process has ended.", markup=False)
        return
    aim = aim_at_listed(process)
    if isinstance(aim, str):
        app.notify(aim, markup=False)
    else:
        app.push_screen(StopScreen(aim))


def offer_stop(app: App[Any], subject: str | None, *, readonly: bool = False) -> None:
    """Asks the user whether to stop a job. `subject`: its recording's folder, or a pid."""
    if readonly or subject is None:
        app.notify(READONLY if readonly else NO_JOB, markup=False)
        return
    process = subject.isdecimal()
    aim = aim_at_process(int(subject)) if process else aim_at_recording(Path(subject))
    if isinstance(aim, str):
        app.notify(aim, markup=False)
    else:
        app.push_screen(StopScreen(aim))
