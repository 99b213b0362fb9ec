"""The findings: a line each; and one finding in full."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from mgpu_doctor.findings import Diagnosis, Finding, Followed
from mgpu_doctor.live.followed import recent
from mgpu_doctor.live.frame import Frame
from mgpu_doctor.report import text
from mgpu_doctor.report.verdict import Tone, cost
from mgpu_doctor.tui.panels.parts import DIM, ends
from mgpu_doctor.tui.panels.said import MARKS
from mgpu_doctor.tui.view import View

if TYPE_CHECKING:
    from mgpu_doctor.tui.panels.infull import InFull


def lines(frame: Frame, width: int, view: View) -> list[Text]:
    diagnosis = frame.diagnosis
    if diagnosis is None:
        return []
    gone = [_gone(one, frame.at, width) for one in recent(frame.followed)]
    if not diagnosis.findings:
        return [Text("no finding", style=DIM), *gone]
    selected = min(view.finding, len(diagnosis.findings) - 1)
    there = [
        _line(finding, width, place == selected) for place, finding in enumerate(diagnosis.findings)
    ]
    return there + gone


def _line(finding: Finding, width: int, selected: bool) -> Text:
    mark, style = MARKS[Tone(finding.severity.value)]
    shown = Text.assemble(
        ("> " if selected else "  ", "bold"),
        (f"{mark} ", style),
        (f"{finding.code}  ", "bold"),
        (text.line(finding.title), ""),
    )
    spent = cost(finding.cost)
    return ends(shown, Text(spent or "", style=DIM), width)


def _gone(one: Followed, now: float, width: int) -> Text:
    """A finding that has resolved itself."""
    mark, style = MARKS[Tone.GOOD]
    shown = Text.assemble(
        (f"  {mark} ", style), (f"{one.finding.code}  {text.line(one.finding.title)}", DIM)
    )
    ago = text.seconds(max(0.0, round(now - (one.resolved or now))))
    return ends(shown, Text(f"resolved {ago} ago", style=DIM), width)


def in_full(diagnosis: Diagnosis, width: int, view: View) -> list[Text]:
    """The lines of the selected finding's details."""
    selected = diagnosis.findings[min(view.finding, len(diagnosis.findings) - 1)]
    return details(diagnosis, selected).lines(width)


def details(diagnosis: Diagnosis, finding: Finding) -> InFull:
    """Everything about a finding, in whatever width it is shown."""
    from mgpu_doctor.tui.panels.infull import InFull  # no part of one frame as text

    return InFull(finding, diagnosis.step_seconds)
