"""The screen with graphs over time."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.events import Click, MouseScrollDown, MouseScrollUp, Resize
from textual.message import Message
from textual.widgets import Footer

from mgpu_doctor.formatting import format_seconds
from mgpu_doctor.live.frame import Frame
from mgpu_doctor.live.history_collector import History, Place
from mgpu_doctor.live.history_series import columns
from mgpu_doctor.report import text
from mgpu_doctor.tui.filter.matching import gpus
from mgpu_doctor.tui.panels.table_cells import DIM, ends
from mgpu_doctor.tui.screens.base import DrawnLines, FollowingScreen
from mgpu_doctor.tui.screens.graph_plotting import (  # look
    GUTTER_GAP,
    Graph,
    bounds,
    clock,
    drawn,
)
from mgpu_doctor.tui.screens.graph_selection import (
    Choice,
    Kind,
    Lane,
    Subject,
    lanes,
    spans,
    subjects,
)

LEAST_FOCUS = 6
"""Lines of the selected graph."""
MOST_EACH = 12
VALUE = 10
"""Cells for a value with its unit."""
LEAST_PLOT = 10


@dataclass(frozen=True, slots=True)
class Drawn:
    """`lanes[line]`: the graph that a line belongs to. `margin`: cells left of the columns."""

    lines: list[Text]
    lanes: list[Lane | None]
    margin: int
    most_scrolled: int = 0


def draw(
    history: History,
    choice: Choice,
    width: int,
    height: int,
    reasons: Mapping[Place, str] | None = None,
) -> Drawn:
    """`reasons`: why not everything is known of a GPU."""
    subject, measure = choice.shown(history), choice.measured(history)
    start, stop = choice.window.fitted(history.at, history.first)
    all_lanes = lanes(history, subject, measure)
    focus = None if subject.is_many else subject.measures.index(measure)
    heights, first = _heights(len(all_lanes), focus, max(1, height - 2))
    most = 0 if focus is not None else max(0, len(all_lanes) - len(heights))
    first += min(choice.scrolled, most)
    shown = all_lanes[first : first + len(heights)]
    titles = max((len(lane.title) for lane in shown), default=0)
    margin = min(titles + 1 + VALUE + GUTTER_GAP, max(0, width - LEAST_PLOT))
    count = max(1, width - margin)
    known = [spans(history, lane) for lane in shown]
    cut = [columns(spans, start, stop, count) for spans in known]
    together = bounds(measure, cut) if subject.is_many else None
    made = [_head(history, choice, width)]
    owners: list[Lane | None] = [None]
    for lane, lane_spans, parts, lines in zip(shown, known, cut, heights, strict=True):
        axis = together or bounds(lane.measure, [parts])
        why = _why(lane, reasons or {})
        made += drawn(Graph(lane, lane_spans, parts, axis, (start, stop), margin, why), lines)
        owners += [lane] * lines
    blank = max(0, height - 1 - len(made))
    made += [Text()] * blank
    owners += [None] * (blank + 1)
    made = [*made, clock(start, stop, count, margin)][:height]
    for line in made:
        line.truncate(width)
    return Drawn(made, owners[:height], margin, most)


def _heights(count: int, focus: int | None, room: int) -> tuple[list[int], int]:
    """Returns the lines of each graph shown, and the first one shown. `focus`: the selected graph,
    always shown."""
    if focus is None:
        each = max(1, min(MOST_EACH, room // max(1, count)))
        return [each] * min(count, room), 0
    others = count - 1
    each = 2 if room >= 2 * others + 2 * LEAST_FOCUS else 1
    shown = min(others, max(0, room - LEAST_FOCUS) // each)
    place = min(focus, shown)
    heights = [each] * shown
    heights.insert(place, room - each * shown)
    return heights, focus - place


def _head(history: History, choice: Choice, width: int) -> Text:
    subject, there = choice.shown(history), subjects(history)
    left = Text(subject.title, style="bold cyan")
    if subject.is_many:
        left.append(f"  {choice.measured(history).name}", style="bold")
    left.append(f"  {there.index(subject) + 1} of {len(there)}", style=DIM)
    start, stop = choice.window.fitted(history.at, history.first)
    right = Text(format_seconds(round(stop - start)), style="bold")
    if round(stop - start) < choice.window.length:
        right.append(f" of {format_seconds(choice.window.length)}", style=DIM)
    at = time.strftime("%H:%M:%S", time.localtime(stop))
    if choice.window.end is None:
        right.append(f" to {at}", style=DIM)
    else:
        ago = format_seconds(round(history.at - stop))
        right.append(f" to {at}, {ago} ago; 0: now", style="yellow")
    return ends(left, right, width)


def _why(lane: Lane, reasons: Mapping[Place, str]) -> str:
    """What to say where nothing at all is known."""
    if lane.subject.kind is not Kind.GPU:
        return "not measured" if lane.subject.kind is not Kind.HOST else "never sampled"
    lines = (why for (host, index), why in reasons.items() if _is_it(lane.subject, host, index))
    reason = next(lines, None)
    return f"never sampled: {text.line(reason)}" if reason else "never sampled"


def _is_it(subject: Subject, host: str | None, index: int) -> bool:
    return subject.number == index and subject.host in (None, host)


KEYS = (
    ("[ ]", "shorter, longer window: 1, 5, 15 minutes, 1, 3, 6 hours; also the wheel"),
    ("h l", "earlier, later (also shift and an arrow)"),
    ("0", "back to now, and follow it"),
    ("up, down", "next or previous subject: GPUs, host, job, ranks"),
    ("tab", "next measure (shift+tab: back); click a graph to select it"),
    ("page up, down", "if there are more graphs than lines"),
    ("escape, g", "close"),
)
"""For the help page."""

Change = Callable[[Choice, History], Choice]


class HistoryScreen(FollowingScreen):
    """Opens over the screen. `show` brings it the newest frame, live or replayed."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left_square_bracket", "zoom(-1)", "shorter", tooltip="Shorter window."),
        Binding(
            "right_square_bracket",
            "zoom(1)",
            "longer",
            tooltip="Longer window; the mouse wheel zooms at the pointer.",
        ),
        Binding(
            "h,shift+left",
            "pan(-1)",
            "earlier",
            tooltip="Back a quarter of the window (or shift+←).",
        ),
        Binding(
            "l,shift+right",
            "pan(1)",
            "later",
            tooltip="Forward a quarter of the window (or shift+→).",
        ),
        Binding("0", "follow", "now", tooltip="Back to now, and follow it."),
        Binding(
            "up,k",
            "subject(-1)",
            "previous",
            tooltip="Previous subject: all GPUs, one GPU, host, job, ranks.",
        ),
        Binding(
            "down,j",
            "subject(1)",
            "next",
            tooltip="Next subject; click one of many graphs to select it.",
        ),
        Binding(
            "tab",
            "measure(1)",
            "measure",
            priority=True,
            tooltip="Next measure; shift+tab: the previous one.",
        ),
        Binding("shift+tab", "measure(-1)", show=False, priority=True),
        Binding("pageup", "scroll(-1)", show=False),
        Binding(
            "pagedown",
            "scroll(1)",
            show=False,
            tooltip="Show graphs that do not fit; pageup: back.",
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


NOTHING_YET = "No samples yet."


class Graphs(DrawnLines):
    """Draws what is chosen of a frame's history."""

    class Wheel(Message):
        """The mouse wheel: zooms out by this many bases, around the pointer at a share of the
        width."""

        def __init__(self, by: int, share: float) -> None:
            super().__init__()
            self.by, self.share = by, share

    class Picked(Message):
        """A graph was clicked."""

        def __init__(self, lane: Lane) -> None:
            super().__init__()
            self.lane = lane

    def __init__(self) -> None:
        super().__init__()
        self._shown: tuple[Frame, Choice] | None = None
        self._drawn = Drawn([], [], 0)

    @property
    def most_scrolled(self) -> int:
        """Graphs that do not fit."""
        return self._drawn.most_scrolled

    def show(self, frame: Frame, choice: Choice) -> None:
        """Draw this from now on."""
        self._shown = frame, choice
        self._redraw()

    def on_resize(self, _event: Resize) -> None:
        self._redraw()

    def _redraw(self) -> None:
        if self._shown is None or not self.size.area:
            return
        frame, choice = self._shown
        if frame.history is None:
            self._drawn = Drawn([Text(NOTHING_YET)], [None], 0)
        else:
            troubles = ((host, device.index, device.trouble) for host, device in gpus(frame))
            reasons = {(host, index): why for host, index, why in troubles if why}
            self._drawn = draw(frame.history, choice, *self.size, reasons)
        self.put(self._drawn.lines)

    def on_click(self, event: Click) -> None:
        lane = self._drawn.lanes[event.y] if event.y < len(self._drawn.lanes) else None
        if lane is not None:
            self.post_message(self.Picked(lane))

    def on_mouse_scroll_up(self, event: MouseScrollUp) -> None:
        self._wheel(-1, event.x)

    def on_mouse_scroll_down(self, event: MouseScrollDown) -> None:
        self._wheel(1, event.x)

    def _wheel(self, by: int, x: int) -> None:
        margin = self._drawn.margin
        share = (x - margin) / max(1, self.size.width - margin)
        self.post_message(self.Wheel(by, max(0.0, min(1.0, share))))
