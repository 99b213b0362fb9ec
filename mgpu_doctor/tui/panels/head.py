"""The head of the screen: which job, how it goes, what is wrong; and how late the screen is."""

from __future__ import annotations

import time

from rich.text import Text

from mgpu_doctor.live.frame import Frame, Position
from mgpu_doctor.report import text
from mgpu_doctor.tui.panels.parts import DIM, ends
from mgpu_doctor.tui.view import View

LATE = 0.25
"""Seconds from which lateness is shown in colour."""
BARS = ((120, 24), (100, 12), (76, 6), (0, 0))
"""From how many columns on a replay's bar has how many cells."""
CLOCK_FROM = 100


def lines(frame: Frame, width: int, _view: View) -> list[Text]:
    title = Text.assemble(
        ("mgpu-doctor", "bold"), ("  ", ""), (text.line(frame.source), "bold cyan")
    )
    if frame.others:
        title.append(f"  +{frame.others} more (j)", style=DIM)
    made = [ends(title, _clock(frame, width), width)]
    if frame.diagnosis is None:
        told = (frame.hint or "").splitlines()
        return made + [ends(Text(text.line(line)), Text(""), width) for line in told]
    from mgpu_doctor.tui.panels import job, said  # not for a machine without a job

    return [*made, *job.lines(frame, frame.diagnosis, width), said.line(frame.diagnosis, width)]


def _clock(frame: Frame, width: int) -> Text:
    at = time.strftime("%H:%M:%S", time.localtime(frame.at))
    if frame.replay is not None:
        return _position(frame.replay, at, width)
    late = "bold yellow" if frame.late >= LATE else DIM
    return Text.assemble((f"late {frame.late:.1f} s  ", late), (at, ""))


def _position(replay: Position, at: str, width: int) -> Text:
    """Where it stands, which is told on the narrowest screen; the time of day is not."""
    passed, span = replay.at - replay.start, replay.end - replay.start
    cells = next(cells for least, cells in BARS if width >= least)
    done = round(cells * max(0.0, min(1.0, passed / max(1e-9, span))))
    sign = "paused" if replay.paused else f"x{replay.speed:g}"
    return Text.assemble(
        (f"replay {sign} ", "bold magenta"),
        ("━" * done, "magenta"),
        ("─" * (cells - done), DIM),
        (f" {text.seconds(passed)} of {text.seconds(span)}", ""),
        (f"  {at}" if width >= CLOCK_FROM else "", DIM),
    )
