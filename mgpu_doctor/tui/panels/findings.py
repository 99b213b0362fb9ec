"""The findings: a line each; and one finding in full."""

from __future__ import annotations

from rich.text import Text

from mgpu_doctor.findings import Diagnosis, Finding, Followed
from mgpu_doctor.live.followed import recent
from mgpu_doctor.live.frame import Frame
from mgpu_doctor.report import text
from mgpu_doctor.report.verdict import Tone, cost, gain, who
from mgpu_doctor.tui.panels.parts import DIM, ends
from mgpu_doctor.tui.panels.said import MARKS
from mgpu_doctor.tui.view import View


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
    from rich.console import Console  # the live screen has it anyway, one frame as text does not

    selected = diagnosis.findings[min(view.finding, len(diagnosis.findings) - 1)]
    wrapped = details(diagnosis, selected).wrap(Console(), max(1, width))
    return [*wrapped]


def details(diagnosis: Diagnosis, finding: Finding) -> Text:
    """Everything about a finding, to be wrapped by whoever shows it."""
    mark, style = MARKS[Tone(finding.severity.value)]
    shown = Text.assemble((f"{mark} {text.line(finding.title)}\n", style))
    since = f", since step {finding.since_step}" if finding.since_step else ""
    sure = text.percent(finding.confidence)
    shown.append(
        f"{finding.code}, {finding.severity.value}, confidence {sure}{since}\n\n", style=DIM
    )
    _labelled(shown, "who", who(finding))
    if finding.victims:
        _labelled(shown, "suffers", text.name_ranks(finding.victims))
    _labelled(shown, "why", finding.cause)
    _labelled(shown, "costs", cost(finding.cost) or "")
    if finding.evidence:
        shown.append("\nevidence\n", style="cyan")
    for one in finding.evidence:
        shown.append(f"  {text.line(one.measure)}  ")
        shown.append(text.quantity(one.value, one.unit), style="bold")
        if one.baseline is not None:
            shown.append(f", against {text.quantity(one.baseline, one.unit)}")
        about = "  ".join(text.line(part) for part in (one.where, one.source) if part)
        shown.append(f"  {about}\n", style=DIM)
    for fix in finding.fixes:
        shown.append("\nfix      ", style="cyan").append(f"{text.line(fix.summary)}\n")
        for how in text.clean(fix.how).strip("\n").splitlines():
            shown.append(f"  │ {how}\n", style="bold cyan")
        _labelled(shown, "gain", gain(fix.predicted, diagnosis.step_seconds) or "")
    return shown


def _labelled(shown: Text, label: str, content: str) -> None:
    if content:
        shown.append(f"{label:9}", style="cyan").append(f"{text.line(content)}\n")
