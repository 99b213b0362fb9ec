"""What is wrong with the job, in one line; and the mark of each tone."""

from __future__ import annotations

from rich.text import Text

from mgpu_doctor.findings import Diagnosis
from mgpu_doctor.report.verdict import Tone, verdict
from mgpu_doctor.tui.filter.shown import kept
from mgpu_doctor.tui.panels.parts import ends

MARKS = {
    Tone.CRITICAL: ("✗", "bold red"),
    Tone.WARNING: ("!", "bold yellow"),
    Tone.INFO: ("i", "bold cyan"),
    Tone.GOOD: ("✓", "bold green"),
    Tone.UNKNOWN: ("?", "bold magenta"),
}


@kept
def line(diagnosis: Diagnosis, width: int) -> Text:
    said = verdict(diagnosis)
    mark, style = MARKS[said.tone]
    return ends(Text.assemble((f"{mark} ", style), (said.sentence, "bold")), Text(""), width)
