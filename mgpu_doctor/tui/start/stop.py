"""Stopping a job: asked before, told meanwhile; SIGKILL only where it is asked for again."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Static

from mgpu_doctor.report import text
from mgpu_doctor.tui.start.stopping import TERM_AFTER, Aim, send

GLANCE = 0.25
Send = Callable[[Aim, signal.Signals], str | None]


class StopScreen(ModalScreen[bool]):
    """Gives whether the job has ended. `after`: seconds from SIGINT to SIGTERM, and from that to
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
            page.border_title = "Stop a job"
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
                "Kill every process of the job now? Nothing of it can save its work, and what it "
                "shares with others (files, GPUs' memory) is left as it is.\n\n"
                "y: SIGKILL   escape: leave"
            )

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
        """Seconds until more may be done."""
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
            following = "SIGTERM" if number is signal.SIGINT else "SIGKILL can be asked for"
            self._tell(
                f"{number.name} was sent; the job still runs.\n\n"
                f"{following} in {self._rest:.0f} s   escape: leave it at {number.name}"
            )
        elif number is signal.SIGINT:
            self._signal(signal.SIGTERM)
        else:
            self._tell(
                f"The job still runs, {self._after:.0f} s after {number.name}.\n\n"
                "k: kill it with SIGKILL   escape: leave"
            )

    def _tell(self, sentence: str) -> None:
        self.query_one("#said", Static).update(Text(sentence))
