"""The page of graphs as lines: what is chosen of a history, in a width and a height. Pure."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from rich.text import Text

from mgpu_doctor.live.history.collect import History, Place
from mgpu_doctor.live.history.spans import columns
from mgpu_doctor.report import text
from mgpu_doctor.tui.history.axis import bounds, clock
from mgpu_doctor.tui.history.choice import Choice
from mgpu_doctor.tui.history.lane import GUTTER_GAP, Graph, drawn
from mgpu_doctor.tui.history.subjects import Kind, Lane, Subject, lanes, spans, subjects
from mgpu_doctor.tui.panels.parts import DIM, ends

LEAST_FOCUS = 6
"""Lines of the graph that stands out."""
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
    start, stop = choice.window.span(history.at)
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
    cut = [columns(one, start, stop, count) for one in known]
    together = bounds(measure, cut) if subject.is_many else None
    made = [_head(history, choice, width)]
    owners: list[Lane | None] = [None]
    for lane, one, parts, lines in zip(shown, known, cut, heights, strict=True):
        axis = together or bounds(lane.measure, [parts])
        why = _why(lane, reasons or {})
        made += drawn(Graph(lane, one, parts, axis, (start, stop), margin, why), lines)
        owners += [lane] * lines
    blank = max(0, height - 1 - len(made))
    made += [Text()] * blank
    owners += [None] * (blank + 1)
    made = [*made, clock(start, stop, count, margin)][:height]
    for line in made:
        line.truncate(width)
    return Drawn(made, owners[:height], margin, most)


def _heights(count: int, focus: int | None, room: int) -> tuple[list[int], int]:
    """Lines of each graph that is shown, and which is the first; `focus`: the one that stands
    out, and is always shown."""
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
    _, stop = choice.window.span(history.at)
    right = Text(text.seconds(choice.window.length), style="bold")
    at = time.strftime("%H:%M:%S", time.localtime(stop))
    if choice.window.end is None:
        right.append(f" to {at}", style=DIM)
    else:
        ago = text.seconds(round(history.at - stop))
        right.append(f" to {at}, {ago} ago; 0: now", style="yellow")
    return ends(left, right, width)


def _why(lane: Lane, reasons: Mapping[Place, str]) -> str:
    """What to say where nothing at all is known."""
    if lane.subject.kind is not Kind.GPU:
        return "not measured" if lane.subject.kind is not Kind.HOST else "never sampled"
    told = (why for (host, index), why in reasons.items() if _is_it(lane.subject, host, index))
    reason = next(told, None)
    return f"never sampled: {text.line(reason)}" if reason else "never sampled"


def _is_it(subject: Subject, host: str | None, index: int) -> bool:
    return subject.number == index and subject.host in (None, host)
