"""The launch form: a built-in trainer, its options and faults; the command shown as one types."""

from __future__ import annotations

from typing import ClassVar

from mgpu_trainers import catalogue
from rich.text import Text
from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Footer, Select, Static

from mgpu_doctor.report import text
from mgpu_doctor.tui.start import form
from mgpu_doctor.tui.start.faultrows import FaultRows
from mgpu_doctor.tui.start.form import Filled, Ready
from mgpu_doctor.tui.start.rows import Row
from mgpu_doctor.tui.start.starting import NotStartedError, Started, Starter, shown, start

READONLY = "nothing is started: this dashboard is --readonly. The command can be copied (ctrl+y)."


class LaunchScreen(ModalScreen[Started | None]):
    """Gives what was started; None: nothing. `starter`: starts it, in a thread."""

    DEFAULT_CSS = """
    LaunchScreen > Vertical { background: $surface; border: round $accent; padding: 0 1; }
    LaunchScreen VerticalScroll { height: 1fr; }
    LaunchScreen #trainer { width: 40; }
    LaunchScreen #summary { height: 1; color: $text-muted; margin-bottom: 1; }
    LaunchScreen FaultRows { margin-top: 1; }
    LaunchScreen #said { height: auto; max-height: 4; }
    LaunchScreen #command { height: auto; max-height: 4; text-style: bold; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+s,f5", "start", "start", key_display="^s", priority=True),
        Binding("ctrl+y", "copy", "copy command", priority=True),
        Binding("ctrl+n", "add_fault", "another fault", priority=True),
        Binding("ctrl+r", "drop_faults", "no faults", priority=True),
        Binding("escape", "leave", "back"),
        # With priority, or else what is typed at once on a busy machine is still the old field's.
        Binding("tab", "app.focus_next", show=False, priority=True),
        Binding("shift+tab", "app.focus_previous", show=False, priority=True),
    ]

    def __init__(self, starter: Starter = start, *, readonly: bool = False) -> None:
        super().__init__()
        self._starter = starter
        self._readonly = readonly
        self._starting = False
        self._trainer = catalogue.TRAINERS[0]

    def compose(self) -> ComposeResult:
        with Vertical() as page:
            page.border_title = "Start a trainer"
            names = [(one.name, one.name) for one in catalogue.TRAINERS]
            with VerticalScroll(can_focus=False):
                yield Select(
                    names, value=self._trainer.name, allow_blank=False, compact=True, id="trainer"
                )
                yield Static("", id="summary", markup=False)
                yield Vertical(*self._rows(), id="options")
                yield FaultRows()
            yield Static("", id="said", markup=False)
            yield Static("", id="command", markup=False)
        yield Footer(compact=True)

    def _rows(self) -> list[Row]:
        ranks = self._trainer.ranks
        own = [option for option in self._trainer.options if option.name != form.FAULT]
        return [
            Row(form.RANKS, str(ranks.default), ranks.help),
            *(
                Row(
                    option.name,
                    "" if option.default is None else str(option.default),
                    option.help,
                    option.choices,
                )
                for option in own
            ),
            Row(form.DIRECTORY, "in the doctor's home", "recording: a new folder", wide=True),
        ]

    def on_mount(self) -> None:
        self.query_one("#options", Vertical).styles.height = "auto"
        self.query("#options Input").first().focus()
        self._check()

    async def on_select_changed(self, event: Select.Changed) -> None:
        if isinstance(event.value, str) and event.value != self._trainer.name:
            self._trainer = catalogue.find(event.value)
            options = self.query_one("#options", Vertical)
            await options.remove_children()
            await options.mount_all(self._rows())
        self._check()

    def on_input_changed(self) -> None:
        self._check()

    def on_fault_rows_changed(self) -> None:
        self._check()

    def _filled(self) -> Filled:
        typed = {row.option: row.typed for row in self.query("#options Row").results(Row)}
        ranks, directory = typed.pop(form.RANKS, ""), typed.pop(form.DIRECTORY, "")
        faults = self.query_one(FaultRows).texts
        return Filled(self._trainer.name, ranks, typed, faults, directory)

    def _check(self) -> Ready | None:
        """Show the command, or what is wrong, and mark where."""
        self.query_one("#summary", Static).update(self._trainer.summary)
        found = form.check(self._filled())
        place = None if isinstance(found, Ready) else found.place
        for row in self.query("#options Row").results(Row):
            row.mark(row.option == place)
        if isinstance(found, Ready):
            self._say(READONLY if self._readonly else "")
            self.query_one("#command", Static).update(shown(found.words))
            return found
        self._say(found.sentence)
        self.query_one("#command", Static).update("")
        return None

    def _say(self, sentence: str, mark: str = "! ") -> None:
        told = Text.assemble((mark, "bold yellow"), text.line(sentence)) if sentence else Text("")
        self.query_one("#said", Static).update(told)

    def action_copy(self) -> None:
        if ready := self._check():
            self.app.copy_to_clipboard(shown(ready.words))
            self._say("copied, where the terminal allows it (OSC 52); it stands below, too.", "✓ ")

    def action_add_fault(self) -> None:
        if self._check():
            self.query_one(FaultRows).add()

    def action_drop_faults(self) -> None:
        self.query_one(FaultRows).drop()

    def action_start(self) -> None:
        ready = self._check()
        if ready is not None and not self._readonly and not self._starting:
            self._starting = True
            self._say("starting…", "")
            self._start(ready.words)

    @work(thread=True, name="start", exit_on_error=False)
    def _start(self, words: tuple[str, ...]) -> None:
        try:
            started = self._starter(words)
        except NotStartedError as reason:
            self.app.call_from_thread(self._failed, str(reason))
        else:
            self.app.call_from_thread(self.dismiss, started)

    def _failed(self, sentence: str) -> None:
        self._starting = False
        self._say(sentence, "✗ ")

    def action_leave(self) -> None:
        if not self._starting:
            self.dismiss(None)
