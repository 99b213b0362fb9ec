"""The last minute before the end, rank by rank, as markup."""

from __future__ import annotations

from html import escape

from mgpu_doctor.findings import Diagnosis
from mgpu_doctor.report import text
from mgpu_doctor.report.html.parts import folding, say
from mgpu_doctor.report.lastminute.facts import Stop, last_minute
from mgpu_doctor.report.lastminute.words import HEADS, TITLE, cells, told, whose
from mgpu_doctor.report.redact import Redactor, as_it_is

MOST = 32
"""Ranks; of more, the first to stop and the culprits are among them."""
MOST_PRINTED = 4
"""Ranks whose last lines are shown."""


def the_last_minute(diagnosis: Diagnosis, hide: Redactor | None = None) -> str:
    """Markup; empty where the job ended well or goes on."""
    known = last_minute(diagnosis)
    if known is None:
        return ""
    known = (hide or as_it_is())(known)
    shown = known.newest(MOST)
    rows = [_row(one, several=known.hosts > 1) for one in shown]
    left = len(known.stops) - len(shown)
    more = f'<p class="soft small">{text.count(left, "more rank")}.</p>' if left else ""
    printed = [(whose(one), one.printed) for one in _tellers(shown)]
    printed.append(("The job printed last", known.printed))
    return (
        f"<h2>{TITLE}</h2>\n<p>{say(told(known))}</p>\n"
        f"{folding(HEADS, rows)}\n{more}" + "\n".join(_block(*one) for one in printed if one[1])
    )


def _tellers(shown: tuple[Stop, ...]) -> list[Stop]:
    """Whose last words matter most, of those who printed any."""
    ordered = sorted(shown, key=lambda one: not (one.first or one.culprit))
    return [one for one in ordered if one.printed][:MOST_PRINTED]


def _row(stop: Stop, *, several: bool) -> tuple[str, list[str]]:
    kind = "culprit" if stop.culprit or stop.first else ""
    return kind, [say(cell) for cell in cells(stop, several=several)]


def _block(title: str, lines: tuple[str, ...]) -> str:
    said = "\n".join(escape(text.line(line)) for line in lines)
    return f"<details><summary>{escape(title)}</summary><pre>{said}</pre></details>"
