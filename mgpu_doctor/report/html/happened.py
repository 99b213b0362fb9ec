"""What happened during the run, the oldest first."""

from __future__ import annotations

from html import escape

from mgpu_doctor.findings import Diagnosis
from mgpu_doctor.report import text
from mgpu_doctor.report.events.event import Event
from mgpu_doctor.report.events.shown import shown, since
from mgpu_doctor.report.html.parts import MARKS, say
from mgpu_doctor.report.redact import Redactor, as_it_is

MOST = 60


def happened(diagnosis: Diagnosis, hide: Redactor | None = None) -> str:
    """Markup; empty where nothing is known to have happened."""
    found = shown(diagnosis, MOST)
    if not found.events:
        return ""
    events = (hide or as_it_is())(found.events)
    rows = "\n".join(_row(one, diagnosis.case.job.started) for one in events)
    left = found.left_out
    more = f'<p class="soft small">{text.count(left, "earlier event")} left out.</p>' * bool(left)
    table = f'<table class="events"><tbody>{rows}</tbody></table>'
    return f'<h2>What happened</h2>\n{more}<div class="wide">{table}</div>'


def _row(event: Event, started: float | None) -> str:
    tone = escape(event.tone.value)
    return (
        f'<tr class="{tone}"><td class="number soft">{say(since(event.at, started))}</td>'
        f'<td class="mark">{MARKS[event.tone]}</td><td class="who">{say(event.who)}</td>'
        f'<td class="long">{say(event.sentence)}</td></tr>'
    )
