"""Tries the fixes of a finding on the job that was shown, once it has ended, and shows the result.

The trials are those of `mgpu-doctor treat`, a process of its own: what it prints is shown here, and
what it finds is kept in the recording.
"""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from mgpu_doctor.case.model import Outcome
from mgpu_doctor.findings import Diagnosis, Finding
from mgpu_doctor.formatting import format_seconds
from mgpu_doctor.recording import layout
from mgpu_doctor.report import text
from mgpu_doctor.report.proof_text import list_treatments
from mgpu_doctor.tui.clipboard import copy
from mgpu_doctor.tui.jobs.opening import Turn
from mgpu_doctor.tui.jobs.starting import shown
from mgpu_doctor.tui.keys import READONLY, KeyHints

NO_TREATMENT = "No fix of the finding can be tried on this job: see mgpu-doctor treat --list."
NOT_RECORDED = "Only a job that was started by mgpu-doctor on this machine can be tried again."
GLANCE = 0.25
MOST_PRINTED = 1 << 16


class TrialScreen(ModalScreen[bool]):
    """Asks, then runs the trials. Returns whether it ran them. `words`: the arguments of
    `mgpu-doctor`; `job`: the command that they start; `program`: what they are given to."""

    DEFAULT_CSS = """
    TrialScreen > Vertical { background: $surface; border: round $accent; padding: 0 1; }
    TrialScreen VerticalScroll { height: 1fr; scrollbar-gutter: stable; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "yes", "try it"),
        Binding("ctrl+y", "copy", "copy the command"),
        Binding("escape,q", "leave", "leave"),
    ]

    def __init__(
        self,
        words: Sequence[str],
        job: Sequence[str],
        *,
        still_runs: bool,
        program: Sequence[str] = (sys.executable, "-m", "mgpu_doctor"),
    ) -> None:
        super().__init__()
        self._words = tuple(words)
        self._job = tuple(job)
        self._still_runs = still_runs
        self._program = program
        self._process: subprocess.Popen[bytes] | None = None
        self._printed = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the screen
        self._began = 0.0
        self._is_over = False

    def compose(self) -> ComposeResult:
        with Vertical() as page:
            page.border_title = "Try it"
            with VerticalScroll():
                yield Static(id="said", markup=False)
        yield KeyHints()

    def on_mount(self) -> None:
        self.query_one(VerticalScroll).focus()
        command = shown(self._words)
        if self._still_runs:
            self._tell(
                "The job still runs. Trials beside it would slow it down, and it them; on a GPU, "
                "either could run out of memory. Try it when the job has ended, or stop it (x).\n\n"
                f"{command}"
            )
            return
        self._tell(
            f"{command}\n\n"
            "This runs the first steps of the job again and again, as it is and with each fix, for "
            "up to 10 minutes. The script is not changed, and what the trials write is discarded. "
            f"The job is, by its recording:\n\n{text.line(shlex.join(self._job))}\n\n"
            "y: try it   escape: leave"
        )

    def on_unmount(self) -> None:
        self._interrupt()
        self._printed.close()

    def action_yes(self) -> None:
        if self._process is not None or self._still_runs:
            return
        try:
            self._process = subprocess.Popen(
                [*self._program, *self._words],
                stdin=subprocess.DEVNULL,
                stdout=self._printed,
                stderr=self._printed,
                start_new_session=True,
            )
        except OSError as error:
            self._tell(f"the trials cannot be started ({error.strerror}).")
            return
        self._began = time.monotonic()
        self.set_interval(GLANCE, self._watch)

    def action_copy(self) -> None:
        copy(self.app, shown(self._words), "the command.")

    def action_leave(self) -> None:
        """Ends the trials, which then show what they measured so far; then closes the screen."""
        if self._process is None or self._is_over:
            self.dismiss(self._is_over)
        else:
            self._interrupt()

    def _interrupt(self) -> None:
        if self._process is not None and self._process.poll() is None:
            with suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGINT)

    def _watch(self) -> None:
        if self._process is None or self._is_over:
            return
        if self._process.poll() is None:
            took = format_seconds(round(time.monotonic() - self._began))
            self._tell(f"{shown(self._words)}\n\ntrying, for {took} so far   escape: end it")
            return
        self._is_over = True
        self._printed.seek(0)
        printed = self._printed.read(MOST_PRINTED).decode("utf-8", "replace")
        self._tell(text.clean(printed).strip() or "The trials ended without a message.")

    def _tell(self, sentence: str) -> None:
        self.query_one("#said", Static).update(Text(sentence))


def offer_trials(
    app: App[Any],
    turn: Turn,
    diagnosis: Diagnosis | None,
    finding: Finding | None,
    *,
    readonly: bool,
) -> None:
    """Asks the user whether to try the finding's fixes, or says why that is not possible. `turn`:
    shows the job anew, with what the trials have shown."""
    if readonly or diagnosis is None or finding is None:
        app.notify(READONLY if readonly else NO_TREATMENT, markup=False)
        return
    case = diagnosis.case
    names = list_treatments(finding, case)
    if not names:
        app.notify(NO_TREATMENT, markup=False)
        return
    if case.subject.kind != "recording" or not case.job.command:
        app.notify(NOT_RECORDED, markup=False)
        return
    chosen = [word for name in names for word in ("--only", name)]
    recording = Path(case.subject.ref).absolute()
    words = ("treat", str(recording), *chosen)
    ran_then = case.job.outcome in (Outcome.RUNNING, Outcome.HUNG)  # a replay shows the past
    still_runs = ran_then and not (recording / layout.END).exists()

    def closed(tried: bool | None) -> None:
        if tried:
            turn(recording)

    app.push_screen(TrialScreen(words, case.job.command, still_runs=still_runs), closed)
