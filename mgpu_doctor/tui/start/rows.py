"""A line of a form: what is asked for, what is typed, what it means."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.suggester import SuggestFromList
from textual.widgets import Input, Static

from mgpu_doctor.report import text

MOST_TYPED = 400


class Row(Horizontal):
    """An option. `default`: shown while nothing is typed."""

    DEFAULT_CSS = """
    Row { height: 1; }
    Row .name { width: 14; color: $text-muted; }
    Row Input { width: 18; }
    Row .note {
        width: 1fr; margin-left: 2; color: $text-muted;
        text-wrap: nowrap; text-overflow: ellipsis;
    }
    Row.-wide Input { width: 2fr; }
    Row.-wrong .name { color: $text-error; text-style: bold; }
    """

    def __init__(
        self, option: str, default: str, note: str, choices: Sequence[str] = (), wide: bool = False
    ) -> None:
        super().__init__()
        self.option = option
        self._note = f"{', '.join(choices)}: {note}" if choices else note
        suggester = SuggestFromList(choices) if choices else None
        self._input = Input(
            placeholder=default, compact=True, max_length=MOST_TYPED, suggester=suggester
        )
        self.set_class(wide, "-wide")

    def compose(self) -> ComposeResult:
        yield Static(self.option, classes="name", markup=False)
        yield self._input
        yield Static(Text(text.line(self._note), no_wrap=True, overflow="ellipsis"), classes="note")

    @property
    def typed(self) -> str:
        """What was typed so far."""
        return self._input.value

    def clear(self) -> None:
        """Back to the default."""
        self._input.value = ""

    def mark(self, wrong: bool) -> None:
        """Show whether this is what is wrong."""
        self.set_class(wrong, "-wrong")
