"""What happened, below the headline: a bar for the run, with its few decisive moments."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from mgpu_doctor.case.model import Case
from mgpu_doctor.findings import Diagnosis
from mgpu_doctor.formatting import format_seconds
from mgpu_doctor.report import text
from mgpu_doctor.report.event_timeline import events_of, format_moment
from mgpu_doctor.report.job_events import Kind, TimelineEvent
from mgpu_doctor.report.redaction.redact import Redactor
from mgpu_doctor.report.verdict import MARKS, Tone

WIDTH, MARK = 1000, 4
MOST_MOMENTS = 5
LONGEST = 60
"""Characters of a moment's sentence, which the list of events below has whole."""
GRAVE = (Tone.CRITICAL, Tone.WARNING)


def event_strip(diagnosis: Diagnosis, hide: Redactor) -> str:
    """Returns the strip as markup; empty if fewer than two moments are known."""
    events = [event for event in events_of(diagnosis).events[::-1] if event.at is not None]
    moments = _decisive(hide(tuple(events)))
    if len(moments) < 2:
        return ""
    listed = "".join(_moment(event, diagnosis.case.job.started) for event in moments)
    return (
        f'<div class="strip">{_bar(diagnosis.case, moments)}<ol class="small">{listed}</ol></div>'
    )


def _bar(case: Case, moments: Sequence[TimelineEvent]) -> str:
    """Returns the time from the first to the last moment: a mark for each, and the steps."""
    times = [event.at or 0.0 for event in moments]
    start, end = min(times), max(times)
    if not end > start:
        return ""

    def place(moment: float) -> float:
        return (min(max(moment, start), end) - start) / (end - start) * (WIDTH - MARK)

    rects = "".join(
        f'<rect class="event {event.tone.value}" x="{place(at):.1f}" width="{MARK}" height="10"/>'
        for event, at in zip(moments, times, strict=True)
    )
    timed = [
        rank.steps["end_ns"][[0, -1]] * 1e-9 + rank.clock_offset
        for rank in case.ranks
        if len(rank.steps)
    ]
    if timed:
        first, last = place(min(ends[0] for ends in timed)), place(max(ends[1] for ends in timed))
        rects = (
            f'<rect class="steps" x="{first:.1f}" width="{last - first:.1f}" height="10"/>{rects}'
        )
    label = f"{len(moments)} moments of a run of {format_seconds(end - start)}, and its steps"
    return (
        f'<svg viewBox="0 0 {WIDTH} 10" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(label)}">{rects}</svg>'
    )


def _decisive(events: Sequence[TimelineEvent]) -> list[TimelineEvent]:
    """Returns the first and the last event, and between them the gravest, in order of time."""
    known = [event for event in events if event.kind is Kind.RANKS or event.tone in GRAVE]
    between = sorted(known[1:-1], key=lambda event: event.tone not in GRAVE)
    chosen = [*known[:1], *between[: MOST_MOMENTS - 2], *known[1:][-1:]]
    return sorted(chosen, key=lambda event: event.at or 0.0)


def _moment(event: TimelineEvent, started: float | None) -> str:
    sentence = text.cut(text.line(event.sentence.partition(":")[0]), LONGEST)
    return (
        f'<li class="{event.tone.value}"><span class="soft">{format_moment(event.at, started)}'
        f'</span> <span class="mark">{MARKS[event.tone]}</span> '
        f"{escape(text.cut(text.line(event.who), LONGEST))} {escape(sentence)}</li>"
    )
