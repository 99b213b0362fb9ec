"""The form that starts a built-in trainer with options and faults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from mgpu_trainers import catalogue
from mgpu_trainers.catalogue import Trainer, UsageError
from rich.text import Text
from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.message import Message
from textual.screen import ModalScreen
from textual.suggester import SuggestFromList
from textual.widgets import Input, Select, Static

from mgpu_doctor.report import text
from mgpu_doctor.tui.clipboard import copy
from mgpu_doctor.tui.jobs.starting import NotStartedError, Started, Starter, shown, start
from mgpu_doctor.tui.keys import READONLY, KeyHints

FAULT = "fault"
RANKS = "ranks"
DIRECTORY = "dir"
MOST_RANKS = 1024
"""The most ranks: each is a process, so more than that is a typing error."""


@dataclass(frozen=True, slots=True)
class Filled:
    """The form's content. Empty fields keep their defaults."""

    trainer: str
    ranks: str = ""
    options: Mapping[str, str] = field(default_factory=dict)
    faults: tuple[str, ...] = ()
    directory: str = ""


@dataclass(frozen=True, slots=True)
class Ready:
    """A valid form. `words`: the arguments of `mgpu-doctor`."""

    words: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Refused:
    """An invalid form. `place`: the name of the wrong option."""

    place: str
    sentence: str


def check(filled: Filled) -> Ready | Refused:
    """Returns the command of this form, or its first mistake."""
    try:
        trainer = catalogue.find(filled.trainer)
    except UsageError as error:
        return Refused("trainer", _sentence(error))
    ranks = _ranks(trainer, filled.ranks)
    if isinstance(ranks, Refused):
        return ranks
    given = {name: typed.strip() for name, typed in filled.options.items() if typed.strip()}
    words = ["train", trainer.name]
    if filled.ranks.strip():
        words += ["--ranks", str(ranks)]
    try:
        catalogue.command(trainer, ranks, {**given, FAULT: filled.faults})
    except UsageError as error:
        return Refused(error.option or "trainer", _sentence(error))
    for name, value in (*given.items(), *((FAULT, fault) for fault in filled.faults)):
        words += [f"--{name}", value]
    if filled.directory.strip():
        words += ["--dir", filled.directory.strip()]
    return Ready(tuple(words))


def fault_text(kind: str, values: Mapping[str, str]) -> str:
    """Returns a fault as on the command line, with the keys that are given."""
    given = ",".join(f"{key}={typed.strip()}" for key, typed in values.items() if typed.strip())
    return f"{kind}:{given}" if given else kind


def _ranks(trainer: Trainer, typed: str) -> int | Refused:
    try:
        ranks = int(typed.strip() or str(trainer.ranks.default))
    except ValueError:
        return Refused(RANKS, f"--ranks takes a whole number, not {typed!r}.")
    if not 1 <= ranks <= MOST_RANKS:
        return Refused(RANKS, f"--ranks must be 1 to {MOST_RANKS}, not {ranks}.")
    return ranks


def _sentence(error: UsageError) -> str:
    return f"{str(error).rstrip('.')}."


MOST_TYPED = 400
USUAL = ("steps", "model", "batch", "workers", "precision")
"""The options that the form shows besides the ranks; the others are folded."""
VALID = {"ms": "50"}
"""What a fault's key begins with if it has no default and the fault is invalid without it."""


class Row(Horizontal):
    """An option. `default`: shown while nothing is typed, in parentheses, because typed values may
    have the same colour."""

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
        self,
        option: str,
        default: str,
        note: str,
        choices: Sequence[str] = (),
        *,
        value: str = "",
        wide: bool = False,
    ) -> None:
        super().__init__()
        self.option = option
        self._note = f"{', '.join(choices)}: {note}" if choices else note
        suggester = SuggestFromList(choices) if choices else None
        default = f"({default})" if default else ""
        self._input = Input(
            value, placeholder=default, compact=True, max_length=MOST_TYPED, suggester=suggester
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
        """Shows whether this option is wrong."""
        self.set_class(wrong, "-wrong")


class FaultRows(Vertical):
    """The faults added so far, and the one being edited."""

    DEFAULT_CSS = """
    FaultRows { height: auto; }
    FaultRows #added { height: auto; color: $text-warning; display: none; }
    FaultRows.-several #added { display: block; }
    FaultRows #keys { height: auto; }
    """

    class Changed(Message):
        """Something was typed or chosen."""

    def __init__(self) -> None:
        super().__init__(id="faults")
        self._added: list[str] = []

    def compose(self) -> ComposeResult:
        yield Static("", id="added", markup=False)
        kinds = [
            (f"{kind}: {catalogue.fault_summary(kind)}", kind) for kind in catalogue.fault_keys()
        ]
        yield Select(kinds, prompt="no fault: choose one to inject", compact=True, id="kind")
        yield Vertical(id="keys")

    @property
    def texts(self) -> tuple[str, ...]:
        """Returns all faults as on the command line, the one being edited last."""
        draft = self._draft()
        return (*self._added, *([draft] if draft else []))

    def add(self) -> None:
        """Keeps the edited fault and starts another one, or starts the first."""
        choice = self.query_one("#kind", Select)
        if draft := self._draft():
            self._added.append(draft)
            choice.clear()
            self._tell()
        choice.focus()
        choice.action_show_overlay()

    def drop(self) -> None:
        """Removes all faults."""
        self._added = []
        self.query_one("#kind", Select).clear()
        self._tell()

    def _draft(self) -> str | None:
        kind = self.query_one("#kind", Select).value
        if not isinstance(kind, str):
            return None
        rows = self.query("#keys Row").results(Row)
        return fault_text(kind, {row.option: row.typed for row in rows})

    async def on_select_changed(self, event: Select.Changed) -> None:
        event.stop()
        keys = self.query_one("#keys", Vertical)
        await keys.remove_children()
        if isinstance(event.value, str):
            defaults = catalogue.fault_defaults(event.value)
            await keys.mount_all(
                Row(key, default, "", value="" if default else VALID.get(key, ""))
                for key, default in defaults.items()
            )
        self.post_message(self.Changed())

    def _tell(self) -> None:
        self.set_class(bool(self._added), "-several")
        self.query_one("#added", Static).update("\n".join(f"+ {part}" for part in self._added))
        self.post_message(self.Changed())


COPIES = "ctrl+y copies the command."


class LaunchScreen(ModalScreen[Started | None]):
    """Returns what was started, or None. `starter`: starts it, in a thread."""

    DEFAULT_CSS = """
    LaunchScreen > Vertical { background: $surface; border: round $accent; padding: 0 1; }
    LaunchScreen VerticalScroll { height: 1fr; }
    LaunchScreen #trainer { width: 40; }
    LaunchScreen Select:focus #label { text-style: bold underline; }
    LaunchScreen #summary { height: 1; color: $text-muted; }
    LaunchScreen #options, LaunchScreen #rest { height: auto; }
    LaunchScreen #rest { display: none; }
    LaunchScreen.-unfolded #rest { display: block; }
    LaunchScreen #folded { color: $text-muted; }
    LaunchScreen.-unfolded #folded { display: none; }
    LaunchScreen #said { height: auto; max-height: 4; }
    LaunchScreen #command { height: auto; max-height: 4; text-style: bold; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+s,f5", "start", "start", key_display="^s", priority=True),
        Binding("ctrl+y", "copy", "copy command", priority=True),
        Binding(
            "ctrl+n", "add_fault", "fault", priority=True, tooltip="Inject a fault; again: another."
        ),
        Binding("ctrl+r", "drop_faults", "no faults", priority=True),
        Binding("ctrl+o", "unfold", "all options", priority=True),
        Binding("escape", "leave", "back"),
        # With priority: else keys typed quickly on a busy machine still go to the old field.
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
            names = [(trainer.name, trainer.name) for trainer in catalogue.TRAINERS]
            with VerticalScroll(can_focus=False):
                yield Select(
                    names, value=self._trainer.name, allow_blank=False, compact=True, id="trainer"
                )
                yield Static("", id="summary", markup=False)
                usual, rest = self._rows()
                yield Vertical(*usual, id="options")
                yield FaultRows()
                yield Static("^o: the other options", id="folded", markup=False)
                yield Vertical(*rest, id="rest")
            yield Static("", id="said", markup=False)
            yield Static("", id="command", markup=False)
        yield KeyHints()

    def _rows(self) -> tuple[list[Row], list[Row]]:
        """Returns the usual options and the others."""
        ranks = self._trainer.ranks
        rows = {
            option.name: Row(
                option.name,
                "" if option.default is None else str(option.default),
                option.help,
                option.choices,
            )
            for option in self._trainer.options
            if option.name != FAULT
        }
        usual = [rows.pop(name) for name in USUAL if name in rows]
        directory = Row(DIRECTORY, "in the doctor's home", "recording: a new folder", wide=True)
        return [Row(RANKS, str(ranks.default), ranks.help), *usual], [*rows.values(), directory]

    @property
    def _own_rows(self) -> list[Row]:
        return [*self.query("#options Row, #rest Row").results(Row)]

    def on_mount(self) -> None:
        self.query("#options Input").first().focus()
        self._check()

    async def on_select_changed(self, event: Select.Changed) -> None:
        if isinstance(event.value, str) and event.value != self._trainer.name:
            self._trainer = catalogue.find(event.value)
            for name, rows in zip(("#options", "#rest"), self._rows(), strict=True):
                options = self.query_one(name, Vertical)
                await options.remove_children()
                await options.mount_all(rows)
        self._check()

    def on_input_changed(self) -> None:
        self._check()

    def on_fault_rows_changed(self) -> None:
        self._check()

    def _filled(self) -> Filled:
        typed = {row.option: row.typed for row in self._own_rows}
        ranks, directory = typed.pop(RANKS, ""), typed.pop(DIRECTORY, "")
        faults = self.query_one(FaultRows).texts
        return Filled(self._trainer.name, ranks, typed, faults, directory)

    def _check(self) -> Ready | None:
        """Shows the command, or the mistake and its row."""
        self.query_one("#summary", Static).update(self._trainer.summary)
        outcome = check(self._filled())
        place = None if isinstance(outcome, Ready) else outcome.place
        for row in self._own_rows:
            row.mark(row.option == place)
        if isinstance(outcome, Ready):
            self._say(f"{READONLY} {COPIES}" if self._readonly else "")
            self.query_one("#command", Static).update(shown(outcome.words))
            return outcome
        self._say(outcome.sentence)
        self.query_one("#command", Static).update("")
        return None

    def _say(self, sentence: str, mark: str = "! ") -> None:
        shown = Text.assemble((mark, "bold yellow"), text.line(sentence)) if sentence else Text("")
        self.query_one("#said", Static).update(shown)

    def action_copy(self) -> None:
        if ready := self._check():
            copy(self.app, shown(ready.words), "the command, which is also shown below.")

    def action_add_fault(self) -> None:
        if self._check():
            self.query_one(FaultRows).add()

    def action_unfold(self) -> None:
        self.toggle_class("-unfolded")

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
