"""The sections of the HTML report. Every function returns markup, in which all text is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from mgpu_doctor.case.process_metadata import PhaseClock
from mgpu_doctor.findings import Diagnosis, Evidence, Finding, Fix
from mgpu_doctor.formatting import UNKNOWN, format_count, format_ranks, format_seconds, format_share
from mgpu_doctor.report import phase_bars, text
from mgpu_doctor.report.device_timing import (
    format_run_ahead,
    name_clocks,
    summarize_timing,
)
from mgpu_doctor.report.event_timeline import format_moment, newest_events
from mgpu_doctor.report.job_card import facts
from mgpu_doctor.report.job_events import TimelineEvent
from mgpu_doctor.report.last_minute import (
    HEADS,
    TITLE,
    Stop,
    cells,
    describe_first_stop,
    find_last_minute,
    title_output,
)
from mgpu_doctor.report.rank_rows import Row, evidence_table, rows
from mgpu_doctor.report.redaction.redact import Redactor, no_redaction
from mgpu_doctor.report.stack_tree import tree_lines
from mgpu_doctor.report.verdict import MARKS, Tone, Verdict, cost, gains, job_line, name_culprits

RANK_ROWS = 64
LONGEST = 4000
"""Characters of one sentence or block of code."""
TREE_WIDTH, TREE_HEIGHT = 200, 64


def escape_line(message: str) -> str:
    """Returns one line of untrusted text as markup."""
    return escape(text.cut(text.line(message), LONGEST))


def prose(message: str) -> str:
    """The escaped line, in which text between backticks is code."""
    shortened = text.cut(text.line(message), LONGEST)
    return text.with_code(shortened, escape, lambda code: f"<code>{escape(code)}</code>")


def header(diagnosis: Diagnosis, conclusion: Verdict) -> str:
    mark, sentence = MARKS[conclusion.tone], prose(conclusion.sentence)
    return (
        f'<header><h1><span class="mark">{mark}</span> {sentence}</h1>\n'
        f'<p class="soft">{escape_line(job_line(diagnosis))}</p></header>'
    )


def main_finding(diagnosis: Diagnosis, finding: Finding) -> str:
    return "\n".join(
        [
            _facts(finding),
            _fixes(diagnosis, finding),
            f"<h2>Evidence</h2>\n{_evidence(finding.evidence)}" if finding.evidence else "",
        ]
    )


def further(diagnosis: Diagnosis, findings: Sequence[Finding]) -> str:
    if not findings:
        return ""
    folded = []
    for finding in findings:
        mark = MARKS[Tone(finding.severity.value)]
        fixes = _fixes(diagnosis, finding)
        evidence = _evidence(finding.evidence) if finding.evidence else ""
        folded.append(
            f'<details class="{escape(finding.severity.value)}"><summary>'
            f'<span class="mark">{mark}</span> {escape_line(finding.title)}</summary>\n'
            f'<div class="card">{_facts(finding)}{evidence}{fixes}</div></details>'
        )
    return "<h2>Also found</h2>\n" + "\n".join(folded)


def rank_table(diagnosis: Diagnosis) -> str:
    table = rows(diagnosis, RANK_ROWS)
    if not table:
        return ""
    several = len({row.host for row in table}) > 1
    scale = max(sum(phase_bars.measured_phases(row.phases).values()) for row in table)
    heads = ['<th class="number">rank</th>', "<th>host</th>" if several else "", "<th>state</th>"]
    heads += ['<th class="number step">last step</th>', '<th class="number">per step</th>']
    on_gpus = any(row.clock not in (None, PhaseClock.CPU) for row in table)
    if on_gpus:
        heads += ["<th>clock</th>", '<th class="number">host ahead</th>']
    heads.append(f"<th>where a step's time goes{_up_to(scale)}</th>")
    body = "\n".join(_rank(row, scale, several=several, on_gpus=on_gpus) for row in table)
    used = [
        name
        for name in phase_bars.PHASE_STYLES
        if any(name in phase_bars.measured_phases(r.phases) for r in table)
    ]
    legend = "".join(f"<span>{_swatch(name)}{escape(name)}</span>" for name in used)
    return (
        f'<h2>Ranks</h2>\n<div class="wide"><table class="ranks"><thead><tr>{"".join(heads)}</tr>'
        f'</thead>\n<tbody>{body}</tbody></table></div>\n<p class="legend small">{legend}</p>\n'
        f'<p class="soft small">{escape_line(_coverage(diagnosis))}</p>'
    )


def stacks(diagnosis: Diagnosis) -> str:
    lines = tree_lines(diagnosis.tree, TREE_WIDTH, TREE_HEIGHT)
    if not lines:
        return ""
    tree = "\n".join(
        f"<b>{escape(line.text)}</b>" if line.culprit else escape(line.text) for line in lines
    )
    return f'<h2>Where the ranks were</h2>\n<div class="wide"><pre>{tree}</pre></div>'


def gap_section(diagnosis: Diagnosis) -> str:
    if not diagnosis.unexamined:
        return ""
    items = "\n".join(
        f"<li><strong>{escape_line(gap.probe)}</strong>: {prose(gap.reason)}"
        + (f'<br><span class="soft">{prose(gap.remedy)}</span>' if gap.remedy else "")
        + "</li>"
        for gap in diagnosis.unexamined
    )
    return f"<h2>Not examined</h2>\n<ul>{items}</ul>"


def job_card(diagnosis: Diagnosis, hide: Redactor) -> str:
    return f"<h2>Job</h2>\n{_definitions(facts(diagnosis, hide))}"


def _facts(finding: Finding) -> str:
    since = f", since step {finding.since_step}" if finding.since_step else ""
    facts = {
        "who": name_culprits(finding),
        "affects": format_ranks(finding.victims) if finding.victims else "",
        "why": finding.cause,
        "ruled out": ", ".join(finding.ruled_out),
        "not measured": ", ".join(finding.not_measured),
        "costs": cost(finding.cost) or "",
        "finding": f"{finding.code}, {finding.severity.value}, "
        f"confidence {format_share(finding.confidence)}{since}",
    }
    return _definitions({name: fact for name, fact in facts.items() if fact})


def _definitions(facts: dict[str, str]) -> str:
    pairs = (f"<dt>{escape(name)}</dt><dd>{prose(fact)}</dd>" for name, fact in facts.items())
    return f"<dl>{''.join(pairs)}</dl>"


def _fixes(diagnosis: Diagnosis, finding: Finding) -> str:
    return "\n".join(
        _fix(fix, "Or" if i else "Fix", gains(diagnosis, finding, fix))
        for i, fix in enumerate(finding.fixes)
    )


def _fix(fix: Fix, label: str, gained: Sequence[str]) -> str:
    how = text.cut(text.details(fix.how, fix.summary), LONGEST)
    instructions = f"<p>{prose(how)}</p>" if text.is_prose(how) else f"<pre>{escape(how)}</pre>"
    code = instructions if how.strip() else ""
    gains = "".join(f'<p class="gain">{escape_line(gain)}</p>' for gain in gained)
    title = f"<p><strong>{label}</strong> {prose(fix.summary)}</p>"
    return f'<div class="card fix">{title}{code}{gains}</div>'


def _evidence(evidence: Sequence[Evidence]) -> str:
    heads, body = evidence_table(evidence)
    return folding(heads, [("", [escape_line(cell) for cell in row]) for row in body])


def folding(heads: Sequence[str], body: Iterable[tuple[str, Sequence[str]]]) -> str:
    """Returns a table whose rows become blocks on a phone, where each cell repeats its column's
    title. A row is its class and its cells as markup."""
    lines = "\n".join(
        f"<tr{f' class={chr(34)}{kind}{chr(34)}' if kind else ''}>"
        + "".join(
            f'<td class="long" data-head="{escape(name)}">{cell}</td>'
            for name, cell in zip(heads, cells, strict=True)
        )
        + "</tr>"
        for kind, cells in body
    )
    head = "".join(f"<th>{escape(name)}</th>" for name in heads)
    return (
        f'<div class="wide"><table class="folds"><thead><tr>{head}</tr></thead>\n'
        f"<tbody>{lines}</tbody></table></div>"
    )


def _rank(row: Row, scale: float, *, several: bool, on_gpus: bool) -> str:
    kind = ' class="culprit"' if row.culprit else ""
    host = f"<td>{escape_line(text.cut(row.host, 24))}</td>" if several else ""
    step = UNKNOWN if row.step is None else str(row.step)
    label = f"▸ {row.label}" if row.culprit else row.label
    clock = row.clock.value if row.clock else UNKNOWN
    ahead = format_run_ahead(row.run_ahead)
    timing = f'<td>{clock}</td><td class="number">{escape_line(ahead)}</td>' if on_gpus else ""
    where = (
        f'<span class="small">in {escape_line(text.cut(row.where, 200))}</span>'
        if row.where
        else ""
    )
    return (
        f'<tr{kind}><td class="number">{escape_line(label)}</td>{host}'
        f"<td>{escape_line(row.state)}</td>"
        f'<td class="number step">{step}</td><td class="number">{format_seconds(row.seconds)}</td>'
        f'{timing}<td class="bar">{_bar(row, scale)}{where}</td></tr>'
    )


def _bar(row: Row, scale: float) -> str:
    spent = phase_bars.measured_phases(row.phases)
    if not spent or scale <= 0:
        return ""
    x = 0.0
    rects = []
    for name, value in spent.items():
        width = value / scale * 1000
        tip = f"{name} {format_seconds(value)}"
        rects.append(
            f'<rect class="{name}" x="{x:.1f}" y="0" width="{width:.1f}" height="16">'
            f"<title>{escape(tip)}</title></rect>"
        )
        x += width
    label = ", ".join(f"{name} {format_seconds(value)}" for name, value in spent.items())
    return (
        f'<svg viewBox="0 0 1000 16" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(label)}">{"".join(rects)}</svg>'
    )


def _swatch(name: str) -> str:
    return (
        f'<svg viewBox="0 0 10 10" aria-hidden="true"><rect class="{name}" width="10" height="10">'
        "</rect></svg>"
    )


def _up_to(scale: float) -> str:
    return f", 0 to {escape(format_seconds(scale))}" if scale > 0 else ""


def _coverage(diagnosis: Diagnosis) -> str:
    if diagnosis.coverage is None:
        reason = diagnosis.coverage_reason or "no reason given"
        return f"No phase times: {reason}"
    clocks = name_clocks(diagnosis.ranks)
    timed = f", timed {clocks}," if clocks else ""
    explained = f"The phases{timed} explain {format_share(diagnosis.coverage)} of the ranks' time."
    return f"{explained} {summarize_timing(diagnosis.ranks)}".rstrip()


MOST_EVENTS = 60


def event_section(diagnosis: Diagnosis, hide: Redactor | None = None) -> str:
    """Returns the events as markup; empty if there are none."""
    newest = newest_events(diagnosis, MOST_EVENTS)
    if not newest.events:
        return ""
    events = (hide or no_redaction())(newest.events)
    rows = "\n".join(_event_row(event, diagnosis.case.job.started) for event in events)
    left_out = newest.left_out
    note = f'<p class="soft small">{format_count(left_out, "earlier event")} left out.</p>' * bool(
        left_out
    )
    table = f'<table class="events"><tbody>{rows}</tbody></table>'
    return f'<h2>What happened</h2>\n{note}<div class="wide">{table}</div>'


def _event_row(event: TimelineEvent, started: float | None) -> str:
    tone, moment = escape(event.tone.value), format_moment(event.at, started)
    return (
        f'<tr class="{tone}"><td class="number soft">{escape_line(moment)}</td>'
        f'<td class="mark">{MARKS[event.tone]}</td><td class="who">{escape_line(event.who)}</td>'
        f'<td class="long">{escape_line(event.sentence)}</td></tr>'
    )


MOST_RANKS = 32
"""Ranks; of more, the first to stop and the culprits are among them."""
MOST_PRINTED = 4
"""Ranks whose last lines are shown."""


def last_minute_section(diagnosis: Diagnosis, hide: Redactor | None = None) -> str:
    """Returns the last minute as markup; empty if the job ended well or still runs."""
    last_minute = find_last_minute(diagnosis)
    if last_minute is None:
        return ""
    last_minute = (hide or no_redaction())(last_minute)
    stops = last_minute.newest(MOST_RANKS)
    rows = [_last_minute_row(stop, several=last_minute.hosts > 1) for stop in stops]
    left_out = len(last_minute.stops) - len(stops)
    note = f'<p class="soft small">{format_count(left_out, "more rank")}.</p>' if left_out else ""
    printed = [(title_output(stop), stop.printed) for stop in _stops_with_output(stops)]
    printed.append(("The job printed last", last_minute.printed))
    return (
        f"<h2>{TITLE}</h2>\n<p>{escape_line(describe_first_stop(last_minute))}</p>\n"
        f"{folding(HEADS, rows)}\n{note}"
        + "\n".join(_block(*block) for block in printed if block[1])
    )


def _stops_with_output(stops: tuple[Stop, ...]) -> list[Stop]:
    """Returns the ranks whose last output matters most."""
    ordered = sorted(stops, key=lambda stop: not (stop.first or stop.culprit))
    return [stop for stop in ordered if stop.printed][:MOST_PRINTED]


def _last_minute_row(stop: Stop, *, several: bool) -> tuple[str, list[str]]:
    kind = "culprit" if stop.culprit or stop.first else ""
    return kind, [escape_line(cell) for cell in cells(stop, several=several)]


def _block(title: str, lines: tuple[str, ...]) -> str:
    printed = "\n".join(escape(text.line(line)) for line in lines)
    return f"<details><summary>{escape(title)}</summary><pre>{printed}</pre></details>"
