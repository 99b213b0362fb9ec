"""Base classes of pages that open over the main screen, and the help page."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen, Screen
from textual.strip import Strip
from textual.widget import Widget
from textual.widgets import Static

from mgpu_doctor.live.frame import Frame
from mgpu_doctor.tui.keys import REPLAY_ACTIONS, list_bindings, page_bindings
from mgpu_doctor.tui.view import View

if TYPE_CHECKING:
    from rich.console import RenderableType

ELSE = (
    ("tab", "Next panel; arrows, page keys and the mouse move in it."),
    ("↑ ↓", "Select a finding, a rank or a GPU; enter opens it. Digits select a rank."),
    ("s S", "On a rank's page: its stack, and those of all ranks."),
    ("^p", "Palette: everything above, found by typing a few letters."),
)
READING = (
    "Ranks: a bar is a step's time, its letters are the phases of the legend. The rank whose bar "
    "shows work while the others' show dots (wait) is the one they wait for.",
    "Steps: each cell is one rank's own work in one step beyond the median of the others. Taller "
    "is worse. An empty cell was not measured. A question mark means unknown.",
    "Screen behind: this screen uses at most a fifth of a core, so it falls behind on a busy "
    "machine or with a large job.",
)


class FollowingScreen(Screen[None]):
    """A page that follows the newest frame."""

    def show(self, frame: Frame) -> None:
        """Draw this from now on."""
        raise NotImplementedError


TURNING: list[BindingType] = [
    Binding("n", "turn(1)", "next", tooltip="The next one (or →)."),
    Binding("p", "turn(-1)", "previous", tooltip="The previous one (or ←)."),
    Binding("left", "turn(-1)", show=False, priority=True),
    Binding("right", "turn(1)", show=False, priority=True),
    Binding("escape,q", "close", "close"),
]


class SubjectScreen(FollowingScreen):
    """A page of one rank or one GPU, in panels. `view` selects it, and its order defines the next
    one."""

    # For this page only: Textual prefixes each rule with the page's name. Not DEFAULT_CSS: the
    # app's rules for panels would override it.
    CSS = """
    Panel {
        height: auto;
        scrollbar-size-vertical: 1;
        scrollbar-size-horizontal: 0;
        border-top: solid $primary-darken-1;
        border-title-color: $text-muted;
    }
    Panel:focus { border-top: heavy $accent; border-title-color: $text; }
    """

    def __init__(self, frame: Frame, view: View) -> None:
        super().__init__()
        self.view = view
        self._frame = frame

    def action_turn(self, by: int) -> None:
        """Turns to the subject `by` places later."""
        raise NotImplementedError

    def action_close(self) -> None:
        self.dismiss()


class Page(ModalScreen[None]):
    """Text to read, closed by escape, q or enter."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,enter,question_mark", "app.pop_screen", "close"),
    ]

    CLOSES = "escape: close"

    def __init__(self, title: str, content: RenderableType) -> None:
        super().__init__()
        self._page_title = title
        self._content = content

    def compose(self) -> ComposeResult:
        with VerticalScroll() as page:
            page.border_title = self._page_title
            page.border_subtitle = self.CLOSES
            yield Static(self._content, markup=False)


class FindingPage(Page):
    """A finding in full."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "app.copy_fix", "copy fix"),
        Binding("T", "app.try_fix", "try it"),
    ]
    CLOSES = "y: copy the fix, T: try it, escape: close"


def help_page(app: App[Any]) -> Page:
    """Returns the help: the keys of the open page, those of the live screen, and how to read it.
    Replay keys come last unless a replay is shown."""
    from rich.console import Group  # not needed for the first frame
    from rich.table import Table

    everywhere = list_bindings()
    if not app.check_action("pause", ()):
        everywhere.sort(key=lambda binding: binding.action.partition("(")[0] in REPLAY_ACTIONS)
    listed = [*page_bindings(app.screen), *everywhere]
    keys = Table.grid(padding=(0, 2, 0, 0))
    for key, does in (*((app.get_key_display(key), key.tooltip) for key in listed), *ELSE):
        keys.add_row(Text(key, style="bold"), does)
    return Page("Keys", Group(keys, *(Text(f"\n{shown}") for shown in READING)))


class DrawnLines(Widget):
    DEFAULT_CSS = "DrawnLines { width: 1fr; height: 1fr; }"

    def __init__(self) -> None:
        super().__init__()
        self._strips: list[Strip] = []

    def put(self, lines: Iterable[Text]) -> None:
        """Show these from now on."""
        console = self.app.console
        self._strips = [Strip(line.render(console), line.cell_len) for line in lines]
        self.refresh()

    def render_line(self, y: int) -> Strip:
        style = self.rich_style
        if y >= len(self._strips):
            return Strip.blank(self.size.width, style)
        return self._strips[y].adjust_cell_length(self.size.width, style).apply_style(style)
