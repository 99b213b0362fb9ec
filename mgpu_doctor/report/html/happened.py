"""What happened during the run, the oldest first."""

from __future__ import annotations

import time
from html import escape

from mgpu_doctor.findings import Diagnosis
from mgpu_doctor.report import text
from mgpu_doctor.report.events.event import Event, Kind
from mgpu_doctor.report.events.timeline import events_of
from mgpu_doctor.report.html.parts import MARKS, say

MOST = 60
"""Of more, the newest are shown: how it ended matters most."""


def happened(diagnosis: Diagnosis) -> str:
    """Markup; empty where nothing is known to have happened. Findings stand above it already."""
    known = [one for one in events_of(diagnosis).events if one.kind is not Kind.FINDINGS]
    shown = known[:MOST][::-1]
    if not shown:
        return ""
    started = diagnosis.case.job.started
    rows = "\n".join(_row(one, started) for one in shown)
    left = len(known) - len(shown)
    more = f'<p class="soft small">{text.count(left, "earlier event")} left out.</p>' * bool(left)
    table = f"<table><tbody>{rows}</tbody></table>"
    return f'<h2>What happened</h2>\n{more}<div class="wide">{table}</div>'


def _row(event: Event, started: float | None) -> str:
    tone = escape(event.tone.value)
    return (
        f'<tr class="{tone}"><td class="number soft">{say(_since(event.at, started))}</td>'
        f'<td class="mark">{MARKS[event.tone]}</td><td>{say(event.who)}</td>'
        f'<td class="long">{say(event.sentence)}</td></tr>'
    )


def _since(at: float | None, started: float | None) -> str:
    """After the start; the clock where that is not known."""
    if at is None:
        return text.UNKNOWN
    if started is None:
        return time.strftime("%H:%M:%S", time.gmtime(at)) + " UTC"
    return f"+{text.seconds(max(0.0, at - started))}"
