"""The full diagnosis of a job on a screen, and saving its report."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

from rich.text import Text
from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from mgpu_doctor.diagnosis import diagnose
from mgpu_doctor.examine.case_sources import load_cases
from mgpu_doctor.examine.live_targets import Tell
from mgpu_doctor.examine.subjects import UnknownSubject
from mgpu_doctor.findings import Diagnosis
from mgpu_doctor.recording.write import write_whole
from mgpu_doctor.report import diagnosis_json, html, markdown, terminal, text
from mgpu_doctor.rules.settings import DEFAULTS, Settings
from mgpu_doctor.tui.keys import KeyHints

Examine = Callable[[str, Tell], Diagnosis]


def examination(settings: Settings = DEFAULTS) -> Examine:
    """Returns a function that diagnoses one subject, as `mgpu-doctor diagnose` does. It raises
    `UnknownSubject`."""

    def examine(subject: str, tell: Tell) -> Diagnosis:
        return diagnose(load_cases([subject], tell)[0], settings)

    return examine


class DiagnosisScreen(ModalScreen[None]):
    """Shows a diagnosis. `subject`: as for `mgpu-doctor diagnose`. `examine`: runs in a thread."""

    DEFAULT_CSS = """
    DiagnosisScreen > Vertical { background: $surface; border: round $accent; padding: 0 1; }
    DiagnosisScreen VerticalScroll { height: 1fr; scrollbar-gutter: stable; }
    DiagnosisScreen #said { height: auto; max-height: 3; }
    DiagnosisScreen Input { display: none; }
    DiagnosisScreen.-naming Input { display: block; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("s", "save", "save"),
        Binding("y", "overwrite", "overwrite", show=False),
        Binding("escape,q,d", "leave", "close"),
    ]

    def __init__(self, subject: str, examine: Examine) -> None:
        super().__init__()
        self._subject = subject
        self._examine = examine
        self._diagnosis: Diagnosis | None = None
        self._occupied: Path | None = None

    def compose(self) -> ComposeResult:
        with Vertical() as page:
            page.border_title = "Diagnosis"
            with VerticalScroll():
                yield Static("", id="report", markup=False)
            yield Static("looking at the job…", id="said", markup=False)
            yield Input(compact=True, placeholder="a name that ends in .html, .md or .json")
        yield KeyHints()

    def on_mount(self) -> None:
        self.query_one(VerticalScroll).focus()
        self._refresh()

    @work(thread=True, name="diagnosis", exit_on_error=False)
    def _refresh(self) -> None:
        def tell(sentence: str) -> None:
            self.app.call_from_thread(self._say, f"{sentence}…")

        try:
            diagnosis = self._examine(self._subject, tell)
        except UnknownSubject as reason:
            self.app.call_from_thread(self._say, str(reason))
        except Exception as error:  # shown, never fatal: the dashboard goes on
            failed = f"the diagnosis failed ({type(error).__name__}: {error})."
            self.app.call_from_thread(self._say, failed)
        else:
            self.app.call_from_thread(self._show, diagnosis)

    def _show(self, diagnosis: Diagnosis) -> None:
        if self.is_attached:
            self._diagnosis = diagnosis
            self._say("")
            self._draw()

    def on_resize(self) -> None:
        self.call_after_refresh(self._draw)

    def _draw(self) -> None:
        if self._diagnosis is not None:
            width = self.query_one(VerticalScroll).scrollable_content_region.width
            drawn = terminal.render(self._diagnosis, width=width, colour=True)
            self.query_one("#report", Static).update(Text.from_ansi(drawn))

    def _say(self, sentence: str) -> None:
        if self.is_attached:
            self.query_one("#said", Static).update(Text(text.line(sentence)))

    def action_save(self) -> None:
        if self._diagnosis is None:
            self.notify("There is no diagnosis to save yet.", markup=False)
        else:
            name = self.query_one(Input)
            name.value = name.value or default_name(self._diagnosis)
            self.add_class("-naming")
            name.focus()
            self._say("save the report as (enter; escape: cancel)")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self._save(event.value, overwrite=False)

    def _save(self, name: str, *, overwrite: bool) -> None:
        assert self._diagnosis is not None
        self._occupied = None
        try:
            path = check(name)
            if path.exists() and not overwrite:
                self._occupied = path
                self._close_name()
                self._say(f"{path} already exists: overwrite it? y: yes, escape: no")
                return
            save(self._diagnosis, path, overwrite=overwrite)
        except NotSavedError as reason:
            self._say(str(reason))
            return
        self._close_name()
        self._say(f"the report is in {path.absolute()}")

    def action_overwrite(self) -> None:
        if self._occupied is not None:
            self._save(str(self._occupied), overwrite=True)

    def _close_name(self) -> None:
        self.remove_class("-naming")
        self.query_one(VerticalScroll).focus()

    def action_leave(self) -> None:
        if self.has_class("-naming") or self._occupied is not None:
            self._occupied = None
            self._close_name()
            self._say("")
        else:
            self.dismiss(None)


ENDINGS = (".html", ".md", ".json")


class NotSavedError(Exception):
    """The report was not saved; the message is one sentence that says why."""


def default_name(diagnosis: Diagnosis) -> str:
    """Returns a file name that is probably free in the working folder."""
    name = "".join(
        part if part.isalnum() or part in "-_" else "-" for part in diagnosis.case.job.id
    )
    return f"mgpu-doctor-{text.cut(name, 60).replace('…', '-') or 'job'}.html"


def check(name: str) -> Path:
    """Returns the path for a report of that name. Raises `NotSavedError`."""
    path = Path(name.strip()).expanduser()
    if path.suffix.lower() not in ENDINGS or not path.stem:
        raise NotSavedError("the name must end in .html, .md or .json.")
    if path.is_dir():
        raise NotSavedError(f"{path} is a folder.")
    return path


def save(diagnosis: Diagnosis, path: Path, *, overwrite: bool) -> None:
    """Writes the report (mode 0600). Raises `NotSavedError`, also if the file exists and must not
    be overwritten."""
    if path.exists() and not overwrite:
        raise NotSavedError(f"{path} is there already.")
    try:
        write_whole(path, _rendered(diagnosis, path.suffix.lower()).encode())
    except OSError as error:
        raise NotSavedError(f"{path} cannot be written ({error.strerror}).") from None


def _rendered(diagnosis: Diagnosis, ending: str) -> str:
    if ending == ".html":
        return html.render(diagnosis)
    return diagnosis_json.render(diagnosis) if ending == ".json" else markdown.render(diagnosis)
