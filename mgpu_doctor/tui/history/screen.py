"""The page of graphs over time: which time and whose, chosen by keys and mouse."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Footer

from mgpu_doctor.live.frame import Frame
from mgpu_doctor.live.history.collect import History
from mgpu_doctor.tui.history.choice import Choice
from mgpu_doctor.tui.history.graph import Graphs
from mgpu_doctor.tui.pages import FollowingScreen

KEYS = (
    ("[ ]", "a shorter, a longer time: 1, 5, 15 minutes, 1, 3, 6 hours; so does the wheel"),
    ("h l", "earlier, later (also shift and an arrow)"),
    ("0", "now, and go on with it"),
    ("up, down", "another GPU, the host, the job, another rank"),
    ("tab", "another measure (shift+tab: back); a click on a graph picks it"),
    ("page up, down", "where there are more graphs than lines"),
    ("escape, g", "close"),
)
"""For the help page."""

Change = Callable[[Choice, History], Choice]


class HistoryScreen(FollowingScreen):
    """Opens over the screen. `show` brings it the newest frame, live or replayed."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left_square_bracket", "zoom(-1)", "shorter", tooltip="A shorter time."),
        Binding(
            "right_square_bracket",
            "zoom(1)",
            "longer",
            tooltip="A longer time; the mouse wheel does both where it points.",
        ),
        Binding("h,shift+left", "pan(-1)", "earlier", tooltip="A quarter of it back (or shift+←)."),
        Binding("l,shift+right", "pan(1)", "later", tooltip="A quarter of it on (or shift+→)."),
        Binding("0", "follow", "now", tooltip="To the present, and along with it."),
        Binding(
            "up,k",
            "subject(-1)",
            "previous",
            tooltip="The subject before: all GPUs, one of them, host, job, ranks.",
        ),
        Binding(
            "down,j",
            "subject(1)",
            "next",
            tooltip="The next subject; a click on one of many graphs picks it.",
        ),
        Binding(
            "tab",
            "measure(1)",
            "measure",
            priority=True,
            tooltip="Another measure; shift+tab: the one before.",
        ),
        Binding("shift+tab", "measure(-1)", show=False, priority=True),
        Binding("pageup", "scroll(-1)", show=False),
        Binding(
            "pagedown", "scroll(1)", show=False, tooltip="Graphs that do not fit; pageup: back."
        ),
        Binding("escape,g,q", "close", "close"),
    ]

    def __init__(self, frame: Frame | None = None, choice: Choice | None = None) -> None:
        super().__init__()
        self._frame = frame
        self.choice = choice or Choice()

    def compose(self) -> ComposeResult:
        yield Graphs()
        yield Footer(compact=True)

    def on_mount(self) -> None:
        self._draw()

    def show(self, frame: Frame) -> None:
        """The newest frame."""
        self._frame = frame
        self._draw()

    def action_zoom(self, by: int) -> None:
        self._zoom(by, 0.5)

    def action_pan(self, by: int) -> None:
        def panned(choice: Choice, history: History) -> Choice:
            return replace(choice, window=choice.window.pan(by, history.at, history.first))

        self._choose(panned)

    def action_follow(self) -> None:
        self._choose(lambda choice, _history: replace(choice, window=choice.window.follow()))

    def action_subject(self, by: int) -> None:
        self._choose(lambda choice, history: choice.turned(history, by))

    def action_measure(self, by: int) -> None:
        self._choose(lambda choice, history: choice.next_measure(history, by))

    def action_scroll(self, by: int) -> None:
        most = self.query_one(Graphs).most_scrolled
        page = max(1, self.size.height // 2)
        self._choose(lambda choice, _history: choice.scrolled_by(by * page, most))

    def action_close(self) -> None:
        self.dismiss()

    def on_graphs_wheel(self, message: Graphs.Wheel) -> None:
        self._zoom(message.by, message.share)

    def on_graphs_picked(self, message: Graphs.Picked) -> None:
        self._choose(lambda choice, history: choice.picked(history, message.lane))

    def _zoom(self, by: int, share: float) -> None:
        def zoomed(choice: Choice, history: History) -> Choice:
            window = choice.window.zoom(by, history.at, history.first, share)
            return replace(choice, window=window)

        self._choose(zoomed)

    def _choose(self, change: Change) -> None:
        history = self._frame.history if self._frame else None
        if history is not None:
            self.choice = change(self.choice, history)
            self._draw()

    def _draw(self) -> None:
        if self._frame is not None:
            for graphs in self.query(Graphs):
                graphs.show(self._frame, self.choice)
