"""The screen with graphs over time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.events import Click, MouseScrollDown, MouseScrollUp, Resize
from textual.message import Message

from mgpu_doctor.formatting import format_seconds
from mgpu_doctor.live.frame import Frame
from mgpu_doctor.live.history_collector import History, Place
from mgpu_doctor.live.history_spans import columns
from mgpu_doctor.report import text
from mgpu_doctor.tui.filter.matching import gpus
from mgpu_doctor.tui.keys import KeyHints
from mgpu_doctor.tui.panels.table_cells import DIM, ends
from mgpu_doctor.tui.screens.base import DrawnLines, FollowingScreen
from mgpu_doctor.tui.screens.graph_overlay import MOST, chart, legend_width
from mgpu_doctor.tui.screens.graph_plotting import GUTTER_GAP, Graph, bounds, clock, drawn
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
LEAST_CHART = 9
"""Lines of a chart of several GPUs or ranks and the blank below it, if there are more of them."""
LEAST_APART = 2
"""Lines of a chart of a single GPU or rank."""
VALUE = 10
"""Cells for a value with its unit."""
LEAST_PLOT = 10


@dataclass(frozen=True, slots=True)
class Drawn:
    """`lanes[line]`: the graph that a line belongs to, from the cell `picked_from` on. `margin`,
    `width`: cells left of the columns, and those of the columns. `shown`: graphs that fit, the
    others are reached by scrolling up to `most_scrolled`."""

    lines: list[Text]
    lanes: list[Lane | None]
    margin: int = 0
    width: int = 1
    picked_from: int = 0
    shown: int = 1
    most_scrolled: int = 0


@dataclass(frozen=True, slots=True)
class _Page:
    """What all graphs of a page have in common."""

    history: History
    window: tuple[float, float]
    reasons: Mapping[Place, str]
    width: int
    height: int
    """Lines for the graphs."""

    def graphs(
        self, shown: Sequence[Lane], margin: int, cells: int, *, one_axis: bool
    ) -> list[Graph]:
        known = [spans(self.history, lane) for lane in shown]
        cut = [columns(spans, *self.window, 2 * cells) for spans in known]
        together = bounds(shown[0].measure, cut) if one_axis and shown else None
        return [
            Graph(
                lane,
                lane_spans,
                parts,
                together or bounds(lane.measure, [parts]),
                self.window,
                margin,
                _why(lane, self.reasons),
            )
            for lane, lane_spans, parts in zip(shown, known, cut, strict=True)
        ]


def draw(
    history: History,
    choice: Choice,
    width: int,
    height: int,
    reasons: Mapping[Place, str] | None = None,
) -> Drawn:
    """`reasons`: why not everything is known of a GPU."""
    subject, measure = choice.shown(history), choice.measured(history)
    window = choice.window.fitted(history.at, history.first)
    page = _Page(history, window, reasons or {}, width, max(1, height - 2))
    all_lanes = lanes(history, subject, measure)
    if subject.is_many:
        body = _charts(page, all_lanes, choice)
    else:
        body = _stacked(page, all_lanes, subject.measures.index(measure))
    blank = max(0, page.height - len(body.lines))
    times = clock(*window, body.width, body.margin)
    made = [_head(history, choice, width), *body.lines, *[Text()] * blank, times][:height]
    for line in made:
        line.truncate(width)
    owners = [None, *body.lanes, *[None] * (blank + 1)][:height]
    return replace(body, lines=made, lanes=owners)


def _charts(page: _Page, all_lanes: Sequence[Lane], choice: Choice) -> Drawn:
    """Charts of several GPUs or ranks each, or of a single one, one below the other."""
    many, least = (1, LEAST_APART) if choice.apart else (MOST, LEAST_CHART)
    count = math.ceil(len(all_lanes) / many)
    fit = max(1, min(count, page.height // least))
    most = max(0, count - fit)
    first = min(choice.scrolled, most) * many
    shown = all_lanes[first : first + fit * many]
    margin = min(VALUE + GUTTER_GAP, max(0, page.width - LEAST_PLOT))
    legend = legend_width([lane.title for lane in shown], VALUE, page.width - margin, LEAST_PLOT)
    cells = max(1, page.width - margin - legend)
    graphs = page.graphs(shown, margin, cells, one_axis=True)
    each = page.height // fit
    height = max(1, each - 1) if fit > 1 and each >= LEAST_CHART else each
    lines: list[Text] = []
    owners: list[Lane | None] = []
    for place in range(0, len(shown), many):
        lines += [*chart(graphs[place : place + many], height, VALUE, legend)]
        lines += [Text()] * (each - height)
        owners += [*shown[place : place + many], *[None] * each][:each]
    return Drawn(lines, owners, margin, cells, margin + cells, fit, most)


def _stacked(page: _Page, all_lanes: Sequence[Lane], focus: int) -> Drawn:
    """All measures of one GPU, host or rank; the selected one is higher."""
    heights, first = _heights(len(all_lanes), focus, page.height)
    shown = all_lanes[first : first + len(heights)]
    titles = max((len(lane.title) for lane in shown), default=0)
    margin = min(titles + 1 + VALUE + GUTTER_GAP, max(0, page.width - LEAST_PLOT))
    cells = max(1, page.width - margin)
    lines: list[Text] = []
    owners: list[Lane | None] = []
    for graph, height in zip(
        page.graphs(shown, margin, cells, one_axis=False), heights, strict=True
    ):
        lines += drawn(graph, height)
        owners += [graph.lane] * height
    return Drawn(lines, owners, margin, cells)


def _heights(count: int, focus: int, room: int) -> tuple[list[int], int]:
    """Returns the lines of each graph shown, and the first one shown. `focus`: the selected graph,
    always shown."""
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


Change = Callable[[Choice, History], Choice]
AS_FAR_AS_IT_GOES = "That is as far as it goes."
"""The answer to a key that changes nothing."""


class HistoryScreen(FollowingScreen):
    """Opens over the screen. `show` brings it the newest frame, live or replayed."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,g,q", "close", "close"),
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
            tooltip="Next subject; click a GPU or rank in the legend to select it.",
        ),
        Binding(
            "tab",
            "measure(1)",
            "measure",
            priority=True,
            tooltip="Next measure; shift+tab: the previous one.",
        ),
        Binding("shift+tab", "measure(-1)", show=False, priority=True),
        Binding(
            "o",
            "overlay",
            "overlay",
            tooltip="GPUs or ranks in one chart, or one below the other.",
        ),
        Binding("pageup", "scroll(-1)", show=False),
        Binding(
            "pagedown",
            "scroll(1)",
            show=False,
            tooltip="Show graphs that do not fit; pageup: back.",
        ),
    ]

    def __init__(self, frame: Frame | None = None, choice: Choice | None = None) -> None:
        super().__init__()
        self._frame = frame
        self.choice = choice or Choice()

    def compose(self) -> ComposeResult:
        yield Graphs()
        yield KeyHints()

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

    def action_overlay(self) -> None:
        self._choose(lambda choice, _: replace(choice, apart=not choice.apart, scrolled=0))

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        del parameters
        history = self._frame.history if self._frame else None
        return action != "overlay" or (history is not None and self.choice.shown(history).is_many)

    def action_scroll(self, by: int) -> None:
        drawn = self.query_one(Graphs).drawn
        self._choose(lambda choice, _: choice.scrolled_by(by * drawn.shown, drawn.most_scrolled))

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
            before, self.choice = self.choice, change(self.choice, history)
            if self.choice == before:
                self.notify(AS_FAR_AS_IT_GOES, markup=False)
            self._draw()
            self.refresh_bindings()

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
        self._drawn = Drawn([], [])

    @property
    def drawn(self) -> Drawn:
        """What is on the screen."""
        return self._drawn

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
            self._drawn = Drawn([Text(NOTHING_YET)], [None])
        else:
            troubles = ((host, device.index, device.trouble) for host, device in gpus(frame))
            reasons = {(host, index): why for host, index, why in troubles if why}
            self._drawn = draw(frame.history, choice, *self.size, reasons)
        self.put(self._drawn.lines)

    def on_click(self, event: Click) -> None:
        lane = self._drawn.lanes[event.y] if event.y < len(self._drawn.lanes) else None
        if lane is not None and event.x >= self._drawn.picked_from:
            self.post_message(self.Picked(lane))

    def on_mouse_scroll_up(self, event: MouseScrollUp) -> None:
        self._wheel(-1, event.x)

    def on_mouse_scroll_down(self, event: MouseScrollDown) -> None:
        self._wheel(1, event.x)

    def _wheel(self, by: int, x: int) -> None:
        share = (x - self._drawn.margin) / self._drawn.width
        self.post_message(self.Wheel(by, max(0.0, min(1.0, share))))
