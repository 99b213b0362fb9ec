"""The line in which a filter is typed. It shows mistakes as you type."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.filter import ANSIToTruecolor, LineFilter
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from mgpu_doctor.tui.filter.language import Filter, FilterError, caret, parse

HINT = (
    "rank:0-3 & util<5   state:dead,hung   mem>80%   wait>50% | own>1s   !host:node-a\n"
    "enter: apply   escape: leave   up, down: earlier ones   empty: all are shown"
)
MOST_REMEMBERED = 100


@dataclass(frozen=True, slots=True)
class Chosen:
    """The answer to the prompt. None: no filter."""

    filter: Filter | None


class FilterPrompt(ModalScreen[Chosen | None]):
    """Asks for a filter. The result is None if closed with escape. `history`: earlier filters,
    oldest first; the answer is appended."""

    DEFAULT_CSS = """
    FilterPrompt {
        align: left bottom;
        background: transparent;
    }
    FilterPrompt Vertical {
        height: 5;
        border-top: heavy $accent;
        background: $surface;
    }
    FilterPrompt #caret {
        height: 1;
        color: $text-error;
    }
    FilterPrompt #said {
        height: 2;
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", "leave"),
        Binding("up", "earlier(-1)", "earlier", show=False),
        Binding("down", "earlier(1)", "later", show=False),
    ]

    def __init__(self, current: Filter | None, history: list[str]) -> None:
        super().__init__()
        self._first = "" if current is None else str(current)
        self._history = history
        self._place = len(history)
        self._draft = ""

    def get_line_filters(self) -> Sequence[LineFilter]:
        """Returns the app's without the one that replaces the colours of the terminal: around the
        prompt are finished lines of the screen below."""
        filters = super().get_line_filters()
        return [each for each in filters if not isinstance(each, ANSIToTruecolor)]

    def compose(self) -> ComposeResult:
        with Vertical() as line:
            line.border_title = "Show only ranks and GPUs that match"
            yield Input(self._first, compact=True)
            yield Static(id="caret", markup=False)
            yield Static(HINT, id="said", markup=False)

    def on_input_changed(self, event: Input.Changed) -> None:
        self._say(_wrong(event.value))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        typed = event.value.strip()
        wrong = _wrong(typed)
        if wrong is not None:
            self._say(_wrong(event.value))
            return
        if typed and typed not in self._history[-1:]:
            self._history.append(typed)
            del self._history[:-MOST_REMEMBERED]
        self.dismiss(Chosen(parse(typed) if typed else None))

    def action_leave(self) -> None:
        self.dismiss(None)

    def action_earlier(self, by: int) -> None:
        line = self.query_one(Input)
        if self._place == len(self._history):
            self._draft = line.value
        self._place = max(0, min(len(self._history), self._place + by))
        at_end = self._place == len(self._history)
        line.value = self._draft if at_end else self._history[self._place]
        line.cursor_position = len(line.value)

    def _say(self, wrong: FilterError | None) -> None:
        mark, static = self.query_one("#caret", Static), self.query_one("#said", Static)
        if wrong is None:
            mark.update("")
            static.update(HINT)
            return
        line = self.query_one(Input)
        # The line scrolls with its cursor only after this message.
        self.call_after_refresh(
            lambda: mark.update(caret(line.value, wrong.column)[int(line.scroll_offset.x) :])
        )
        static.update(Text(str(wrong)))


def _wrong(typed: str) -> FilterError | None:
    try:
        if typed.strip():
            parse(typed)
    except FilterError as error:
        return error
    return None
