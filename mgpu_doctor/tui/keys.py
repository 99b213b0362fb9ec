"""The keys of the live screen: actions, footer, help and command palette. What `y` copies is in
`clipboard`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from textual.app import App, SystemCommand
from textual.binding import Binding, BindingType
from textual.keys import format_key
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Footer
from textual.widgets._footer import FooterKey, FooterLabel

ANSWERED_FOR = 4.0
"""Seconds that the answer to a key stays on the screen."""
STEP_SECONDS = 1.0
TENTHS = 10
"""How far the arrows and `<` `>` move a replay."""
SECONDS = Binding.Group("1 s", compact=True)
LEAPS = Binding.Group("a tenth", compact=True)
SPEED = Binding.Group("speed", compact=True)
BINDINGS: list[BindingType] = [
    Binding("space", "pause", "pause", priority=True, tooltip="Replay: pause, resume."),
    Binding(
        "left", "step(-1)", "back", priority=True, group=SECONDS, tooltip="Replay: back 1 second."
    ),
    Binding(
        "right", "step(1)", "on", priority=True, group=SECONDS, tooltip="Replay: forward 1 second."
    ),
    Binding(
        "minus", "speed(-1)", "slower", key_display="-", group=SPEED, tooltip="Replay: slower."
    ),
    Binding(
        "plus,equals_sign",
        "speed(1)",
        "faster",
        key_display="+",
        group=SPEED,
        tooltip="Replay: faster.",
    ),
    Binding(
        "less_than_sign,comma",
        "leap(-1)",
        "leap back",
        key_display="<",
        group=LEAPS,
        tooltip="Replay: back a tenth of it; home: to the start.",
    ),
    Binding(
        "greater_than_sign,full_stop",
        "leap(1)",
        "leap on",
        key_display=">",
        group=LEAPS,
        tooltip="Replay: forward a tenth of it; end: to the end.",
    ),
    Binding("home", "seek(0)", "start", show=False, priority=True),
    Binding("end", "seek(1)", "end", show=False, priority=True),
    Binding(
        "q", "quit", "quit", tooltip="Quit (or ctrl+c); the job is never touched. ctrl+z suspends."
    ),
    Binding("ctrl+c", "quit", show=False, priority=True),
    Binding("ctrl+z", "suspend_process", show=False, priority=True),
    Binding("question_mark", "keys", "help", key_display="?", tooltip="All keys."),
    Binding(
        "enter", "details", "finding", tooltip="The selected finding in full; escape closes it."
    ),
    Binding("y", "copy_fix", "copy fix", show=False, tooltip="Copy the selected finding's fix."),
    Binding(
        "T",
        "try_fix",
        "try it",
        show=False,
        tooltip="Try the selected finding's fixes on the job, once it has ended.",
    ),
    Binding(
        "slash",
        "filter",
        "filter",
        key_display="/",
        tooltip="Show only ranks and GPUs that match: rank:0-3 & util<5; empty: all.",
    ),
    Binding("g", "history", "graphs", tooltip="Graphs over time of GPUs, host, ranks and loss."),
    Binding("e", "events", "events", tooltip="What happened, newest first; 1-7 choose kinds."),
    Binding(
        "r",
        "sort",
        "sort ranks",
        show=False,
        tooltip="Sort the ranks by own work, wait, step, memory …",
    ),
    Binding("R", "reverse", "reverse the order", show=False, tooltip="Reverse the sort order."),
    Binding(
        "h",
        "map",
        "hosts",
        show=False,
        tooltip="Only the map of ranks by host, stage or group; again: all panels.",
    ),
    Binding("j", "next_job", "next job", show=False, tooltip="Next observed job."),
    Binding(
        "n", "launch", "new", tooltip="New job: the built-in trainers, with options and faults."
    ),
    Binding("a", "attach", "attach", tooltip="All training jobs on this machine, observed or not."),
    Binding(
        "d", "diagnosis", "examine", tooltip="Full diagnosis of the job; s there saves the report."
    ),
    Binding("x", "stop", "stop", tooltip="Stop the job, after confirmation."),
    Binding("p", "play_last", "play last", show=False, tooltip="Play the last recording."),
    Binding(
        "t",
        "next_theme",
        "theme",
        show=False,
        tooltip="Dark, light, without colour; NO_COLOR=1 starts without.",
    ),
]
REPLAY_ACTIONS = frozenset({"pause", "step", "leap", "speed", "seek"})
MAIN_ACTIONS = frozenset(
    {
        "details",
        "copy_fix",
        "try_fix",
        "sort",
        "reverse",
        "map",
        "filter",
        "history",
        "events",
        "launch",
        "attach",
        "diagnosis",
        "stop",
    }
)
"""Actions of the main screen, not of the graphs or the events."""


LEFT_OUT = (
    "command_palette", "focus_next", "details", "launch", "attach", "pan", "follow", "filter",
)  # fmt: skip
"""Actions whose keys the bottom line leaves out first, in this order, before those at its right
end: another place shows them, or they are needed least."""


class KeyHints(Footer):
    """The line of keys at the bottom; those that it has no room for are left out. At the start
    Textual makes it eight times, mostly of the same keys; each time took a hundredth of the time to
    the first frame. `waits`: it is empty until `begin`, because its widgets take half as long as
    everything else on the screen."""

    def __init__(self, *, waits: bool = False) -> None:
        super().__init__(compact=True)
        self._waits = waits
        self._hinted: list[tuple[Binding, bool]] = []

    def begin(self) -> None:
        """Shows the keys from now on."""
        if self._waits:
            self._waits = False
            self.screen.refresh_bindings()

    async def recompose(self) -> None:
        if self._waits or not self.is_attached:  # its page was closed meanwhile
            return
        active = self.screen.active_bindings.values()
        hints = [(shown.binding, shown.enabled) for shown in active if shown.binding.show]
        if hints != self._hinted:
            self._hinted = hints
            await super().recompose()
            self._leave_out()

    def on_resize(self) -> None:
        self._leave_out()

    def _leave_out(self) -> None:
        """Shows the keys that fit as a whole. A group of keys stays with the words after it."""
        units: list[tuple[int, list[Widget]]] = []
        for child in self.children:
            if isinstance(child, FooterLabel):
                units[-1][1].append(child)
            else:
                key = next(iter(child.query(FooterKey)), child)
                units.append((_expendable(key), [child]))
        cells = [sum(map(_cells, widgets)) for _, widgets in units]
        left = list(range(len(units)))
        while left and sum(cells[place] for place in left) - 1 > self.app.size.width:
            left.remove(max(left, key=lambda place: (units[place][0], place)))
        for place, (_, widgets) in enumerate(units):
            for widget in widgets:
                widget.display = place in left


def _cells(widget: Widget) -> int:
    """Returns the cells that a widget takes with what is around it, before it is laid out."""
    styles, room = widget.styles, widget.app.size
    return widget.get_content_width(room, room) + styles.gutter.width + styles.margin.width


def _expendable(key: Widget) -> int:
    """Returns how soon a key is left out: 0 for the last; of equals the rightmost is the first."""
    action = key.action if isinstance(key, FooterKey) else ""
    name = action.partition("(")[0].removeprefix("app.")
    return len(LEFT_OUT) - LEFT_OUT.index(name) if name in LEFT_OUT else 0


def list_bindings() -> list[Binding]:
    """Returns the bindings that the help explains."""
    return [binding for binding in BINDINGS if isinstance(binding, Binding) and binding.tooltip]


def find_action(key: str) -> str | None:
    """Returns the action of this key of the live screen; None: it is none of its keys."""
    bindings = (binding for binding in BINDINGS if isinstance(binding, Binding))
    actions = (each.action.partition("(")[0] for each in bindings if key in each.key.split(","))
    return next(actions, None)


def name_unused(app: App[Any], key: str) -> str:
    """Returns the answer to a key that has no meaning on the open page."""
    help_works = "question_mark" in app.screen.active_bindings
    return f"{format_key(key)} does nothing here.{' ? shows the keys.' if help_works else ''}"


ENDED = "The job has ended."
REPLAYED = "This is a replay: there is nothing to stop."
READONLY = "Nothing is started or stopped here: top shows other hosts, or is --readonly."
NO_RECORDING = "There is no recording to play."
NO_REPLAY = "This key works in a replay; p plays the last recording."
AT_END = "This is the start of the recording.", "This is the end of the recording."
NO_SPEED = "There is no slower speed.", "There is no faster speed."
NO_JOB = "No job is shown: n starts one, a lists those on this machine."
NOT_NOW = {
    "details": "There is no finding to open.",
    "copy_fix": "There is no finding with a fix to copy.",
    "try_fix": "There is no finding with a fix to try.",
    "sort": "There are no ranks to sort.",
    "reverse": "There are no ranks to sort.",
    "map": "There are no ranks to show.",
    "next_job": "There is no other job to show.",
    "diagnosis": NO_JOB,
    "stop": NO_JOB,
    **dict.fromkeys(REPLAY_ACTIONS, NO_REPLAY),
}
"""Action -> what the screen answers while it does not work."""


def page_bindings(screen: Screen[Any]) -> list[Binding]:
    """Returns the page's own bindings that the help explains, one key each."""
    return [
        replace(binding, key=binding.key.partition(",")[0])
        for binding in type(screen).BINDINGS
        if isinstance(binding, Binding) and binding.tooltip
    ]


def commands(app: App[Any], screen: Screen[Any]) -> Iterable[SystemCommand]:
    """Returns the palette's commands: the actions that work now, with the keys that do."""
    from mgpu_doctor.recording.home import latest

    active = screen.active_bindings
    for binding in (*page_bindings(screen), *list_bindings()):
        name, _, argument = binding.action.rstrip(")").partition("(")
        keys = [active[key] for key in binding.key.split(",") if key in active]
        bound = next((key for key in keys if key.binding.action == binding.action), None)
        if name == "play_last" and latest() is None:
            continue
        if bound is not None or (binding in BINDINGS and app.check_action(name, (argument,))):
            key = f"  {app.get_key_display(binding)}" if bound else ""
            node = bound.node if bound else app
            yield SystemCommand(
                f"{binding.description.capitalize()}{key}",
                binding.tooltip,
                lambda action=binding.action, node=node: app.run_action(action, node),
            )
