"""Pages that open over the screen: the help, and a finding in full."""

from __future__ import annotations

from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

KEYS = (
    ("q, ctrl+c", "quit; the job is never touched"),
    ("tab", "next panel; arrows and page keys scroll in it, so does the mouse"),
    ("enter", "the selected finding in full: cause, evidence, fix; escape closes it"),
    ("up, down", "select a finding (in the findings panel)"),
    ("/", "show only ranks and GPUs that match: rank:0-3 & util<5; empty: all"),
    ("r, R", "another order of the ranks: own work, wait, step, memory, …; turned round"),
    ("j", "another of the jobs that run here"),
    ("a", "attach: list the training jobs of this machine, observed or not"),
    ("n", "new job: the built-in trainers, with their options and faults"),
    ("d", "examine the shown job in full; s there saves the report"),
    ("x", "stop the shown job, after a question"),
    ("p", "play the last recording"),
    ("g", "graphs over time: [ ] how long, h l earlier and later, 0 now"),
    ("t", "light or dark; NO_COLOR=1 in the environment: without colour"),
    ("", ""),
    ("space", "replay: pause and go on"),
    ("left, right", "replay: a second back, a second on"),
    ("-, +", "replay: slower, faster"),
    ("home, end", "replay: to the start, to the end"),
)
READING = """
Ranks: a bar is a step's time, its letters are the phases of the legend. The rank whose bar holds
work while the others' hold dots (wait) is the one they wait for.
Steps: each cell is one rank's own work in one step beyond the median rank's. The taller, the worse.
An empty cell was not measured. A question mark is not known.
"""


class Page(ModalScreen[None]):
    """Text to read, closed by escape, q or enter."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,enter,question_mark", "app.pop_screen", "close"),
    ]

    def __init__(self, title: str, content: Text) -> None:
        super().__init__()
        self._page_title = title
        self._content = content

    def compose(self) -> ComposeResult:
        with VerticalScroll() as page:
            page.border_title = self._page_title
            page.border_subtitle = "escape: close"
            yield Static(self._content, markup=False)


def help_page() -> Page:
    shown = Text()
    for keys, does in KEYS:
        shown.append(f"{keys:14}", style="bold").append(f"{does}\n")
    shown.append(READING)
    return Page("Keys", shown)
