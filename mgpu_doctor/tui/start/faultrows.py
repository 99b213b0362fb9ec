"""The part of the launch form that builds faults: a kind, and the keys that it takes."""

from __future__ import annotations

from mgpu_trainers import catalogue
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.message import Message
from textual.widgets import Select, Static

from mgpu_doctor.tui.start.form import fault_text
from mgpu_doctor.tui.start.rows import Row


class FaultRows(Vertical):
    """Faults that were added, and the one that is being built."""

    DEFAULT_CSS = """
    FaultRows { height: auto; }
    FaultRows #added { height: auto; color: $text-warning; display: none; }
    FaultRows.-several #added { display: block; }
    FaultRows Select { width: 40; }
    FaultRows #keys { height: auto; }
    """

    class Changed(Message):
        """Something was typed or chosen."""

    def __init__(self) -> None:
        super().__init__(id="faults")
        self._added: list[str] = []

    def compose(self) -> ComposeResult:
        yield Static("", id="added", markup=False)
        kinds = [(kind, kind) for kind in catalogue.fault_keys()]
        yield Select(kinds, prompt="no fault: choose one to plant", compact=True, id="kind")
        yield Vertical(id="keys")

    @property
    def texts(self) -> tuple[str, ...]:
        """All faults as the command line spells them, that in the making last."""
        draft = self._draft()
        return (*self._added, *([draft] if draft else []))

    def add(self) -> None:
        """Keep the fault that was built, and begin another; where none is, begin the first."""
        choice = self.query_one("#kind", Select)
        if draft := self._draft():
            self._added.append(draft)
            choice.clear()
            self._tell()
        choice.focus()

    def drop(self) -> None:
        """Take all faults away."""
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
            await keys.mount_all(Row(key, default, "") for key, default in defaults.items())
        self.post_message(self.Changed())

    def _tell(self) -> None:
        self.set_class(bool(self._added), "-several")
        self.query_one("#added", Static).update("\n".join(f"+ {one}" for one in self._added))
        self.post_message(self.Changed())
