"""The diagnosis for a ticket: GitHub's Markdown, redacted by default.

Untrusted text is escaped so that it cannot start a tag, a link, a table cell, a mention or an issue
reference; untrusted code is in a fence that is longer than any in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from mgpu_doctor.case.process_metadata import PhaseClock
from mgpu_doctor.findings import Diagnosis, Evidence, Finding, Fix
from mgpu_doctor.formatting import UNKNOWN, format_count, format_ranks, format_seconds, format_share
from mgpu_doctor.report import phase_bars, text
from mgpu_doctor.report.device_timing import (
    format_run_ahead,
    name_clocks,
    summarize_timing,
)
from mgpu_doctor.report.event_timeline import format_moment
from mgpu_doctor.report.event_timeline import newest_events as shown_events
from mgpu_doctor.report.job_card import facts
from mgpu_doctor.report.last_minute import (
    HEADS,
    TITLE,
    cells,
    describe_first_stop,
    find_last_minute,
    title_output,
)
from mgpu_doctor.report.rank_rows import Row, evidence_table, rows
from mgpu_doctor.report.redaction.redact import (
    Redactor,
    make_redactor,
    no_redaction,
    redact_diagnosis,
)
from mgpu_doctor.report.stack_tree import tree_lines
from mgpu_doctor.report.verdict import (
    MARKS,
    cost,
    gains,
    job_line,
    leading,
    name_culprits,
    verdict,
)

RANK_ROWS = 64
MINUTE_ROWS, EVENT_ROWS, LONGEST_CELL = 12, 40, 160
LONGEST = 2000
"""Characters of one sentence; a ticket holds 65,536 in all."""
LONGEST_CODE = 8000
TREE_WIDTH, TREE_HEIGHT = 160, 64

_SPECIAL = re.compile(r"[\\`*_\[\]#|~$]|:(?=//)|(?<=www)\.")
_BEGINS = re.compile(r"^(?:[-+=]|\d+(?=[.)](?:\s|$)))")
"""Characters that start a list or a heading at the beginning of a line."""
_INVISIBLE = "<!-- -->"
"""An invisible character between `@` and a name prevents a mention."""
_TAGS = re.compile("[<>&]")
_ENTITIES = {"<": "&lt;", ">": "&gt;", "&": "&amp;"}


def render(diagnosis: Diagnosis, *, redact: bool = True, home: str | None = None) -> str:
    """The text, ending in a newline. `home`: the user's home folder, which is redacted."""
    hide = make_redactor(diagnosis, home) if redact else no_redaction()
    if redact:  # before text is cut: half a name would not be found
        diagnosis = redact_diagnosis(diagnosis, hide)
    conclusion = verdict(diagnosis)
    lead = leading(diagnosis)
    parts = [
        f"## {MARKS[conclusion.tone]} {prose(conclusion.sentence)}",
        escape(job_line(diagnosis)),
    ]
    if lead:
        parts += _finding(diagnosis, lead)
    further = [finding for finding in diagnosis.findings if finding is not lead]
    if further:
        parts += ["### Also", "\n".join(_short(finding) for finding in further)]
    if diagnosis.ranks:
        parts.append(_folded("Ranks", _ranks(rows(diagnosis, RANK_ROWS))))
    parts += _last_minute(diagnosis, hide)
    parts += _events(diagnosis, hide)
    if diagnosis.tree:
        lines = [line.text for line in tree_lines(diagnosis.tree, TREE_WIDTH, TREE_HEIGHT)]
        parts.append(_folded("Stacks", fence("\n".join(lines))))
    parts.append(_coverage(diagnosis))
    if diagnosis.unexamined:
        nothing = not diagnosis.findings and not diagnosis.ranks  # then it says what to do
        parts.append(_folded("Not examined", "\n".join(_gaps(diagnosis)), is_open=nothing))
    parts.append(_folded("Job", _table(("", ""), facts(diagnosis, hide).items())))
    return "\n\n".join(parts) + "\n"


def escape(message: str) -> str:
    """Returns one line of untrusted text without meaning in Markdown, HTML or on GitHub."""
    return _BEGINS.sub(_escape_match, _escape_inline(message))


def _escape_inline(message: str) -> str:
    """Returns the escaped text, for the middle of a line."""
    return _escape_special(text.cut(text.line(message), LONGEST))


def _escape_special(message: str) -> str:
    message = _SPECIAL.sub(
        _escape_match, _TAGS.sub(lambda match: _ENTITIES[match.group()], message)
    )
    return message.replace("@", f"@{_INVISIBLE}")


def prose(message: str) -> str:
    """The escaped line, in which text between backticks is code."""
    shortened = text.cut(text.line(message), LONGEST)
    return _BEGINS.sub(_escape_match, text.with_code(shortened, _escape_special, _span))


def _span(code: str) -> str:
    """Returns a code span without anything that could be read as a tag, the end of a cell or a
    mention."""
    return _escape_special(f"`{code}`") if re.search("[<>&|@]", code) else f"`{code}`"


def _escape_match(match: re.Match[str]) -> str:
    mark = match.group()
    if mark[0].isdigit():  # "1. " begins a list
        return f"{mark}{_INVISIBLE}"
    return f"\\#{_INVISIBLE}" if mark == "#" else f"\\{mark}"


def fence(code: str) -> str:
    """Returns a code block that nothing in `code` can end."""
    code = text.cut(text.clean(code).strip("\n"), LONGEST_CODE)
    longest = max((len(run) for run in re.findall("`+", code)), default=0)
    bars = "`" * max(3, longest + 1)
    return f"{bars}\n{code}\n{bars}"


def _finding(diagnosis: Diagnosis, finding: Finding) -> list[str]:
    facts = [f"**Finding** {_name(finding)}", f"**Who** {escape(name_culprits(finding))}"]
    if finding.victims:
        facts.append(f"**Affects** {escape(format_ranks(finding.victims))}")
    if finding.cause:
        facts.append(f"**Why** {prose(finding.cause)}")
    for label, causes in (("Ruled out", finding.ruled_out), ("Not measured", finding.not_measured)):
        if causes:
            facts.append(f"**{label}** {prose(', '.join(causes))}")
    spent = cost(finding.cost)
    if spent:
        facts.append(f"**Costs** {escape(spent)}")
    parts = ["\n".join(f"- {fact}" for fact in facts)]
    for i, fix in enumerate(finding.fixes):
        gain = "; ".join(gains(diagnosis, finding, fix))
        parts += _fix(fix, "Or" if i else "Fix", gain)
    if finding.evidence:
        parts.append(_folded("Evidence", _evidence(finding.evidence)))
    return parts


def _name(finding: Finding) -> str:
    since = f", since step {finding.since_step}" if finding.since_step else ""
    sure = format_share(finding.confidence)
    return f"`{finding.code}`, {finding.severity.value}, confidence {sure}{since}"


def _fix(fix: Fix, label: str, gain: str) -> list[str]:
    parts = [f"**{label}** {prose(fix.summary)}"]
    how = fix.how.strip()
    if text.details(how, fix.summary).strip():
        parts.append(prose(how) if text.is_prose(how) else fence(fix.how))
    return [*parts, f"**Gain** {escape(gain)}"] if gain else parts


def _short(finding: Finding) -> str:
    spent = cost(finding.cost)
    costs = f" ({escape(spent)})" if spent else ""
    fix = f"; fix: {prose(finding.fixes[0].summary)}" if finding.fixes else ""
    return f"- `{finding.code}` ({finding.severity.value}) {prose(finding.title)}{costs}{fix}"


def _evidence(evidence: Sequence[Evidence]) -> str:
    return _table(*evidence_table(evidence))


def _ranks(table: Sequence[Row]) -> str:
    measured = [
        name
        for name in phase_bars.PHASE_STYLES
        if any(phase_bars.measured_phases(r.phases).get(name) for r in table)
    ]
    several = len({row.host for row in table}) > 1
    last_seen = ["last seen"] if any(row.where for row in table) else []
    on_gpus = any(row.clock not in (None, PhaseClock.CPU) for row in table)
    clock = ["clock", "host ahead"] if on_gpus else []
    return _table(
        (
            "rank",
            *(["host"] if several else []),
            "state",
            "step",
            "per step",
            *clock,
            *measured,
            *last_seen,
        ),
        (
            (
                f"{row.label} (culprit)" if row.culprit else row.label,
                *([row.host] if several else []),
                row.state,
                UNKNOWN if row.step is None else str(row.step),
                format_seconds(row.seconds),
                *([row.clock.value if row.clock else UNKNOWN] if clock else []),
                *([format_run_ahead(row.run_ahead)] if clock else []),
                *(format_seconds(row.phases.get(name)) for name in measured),
                *([row.where or ""] if last_seen else []),
            )
            for row in table
        ),
    )


def _last_minute(diagnosis: Diagnosis, hide: Redactor) -> list[str]:
    last_minute = find_last_minute(diagnosis)
    if last_minute is None:
        return []
    last_minute = hide(last_minute)
    stops = last_minute.newest(MINUTE_ROWS)
    several = last_minute.hosts > 1
    rows = (
        [text.cut(cell, LONGEST_CELL) for cell in cells(stop, several=several)] for stop in stops
    )
    parts = [escape(describe_first_stop(last_minute)), _table(HEADS, rows)]
    left_out = len(last_minute.stops) - len(stops)
    parts += [f"{format_count(left_out, 'more rank')}."] if left_out else []
    spoke = [(title_output(stop), stop.printed) for stop in last_minute.first[:1] if stop.printed]
    for title, lines in (*spoke, ("The job printed last", last_minute.printed)):
        parts += [f"{title}:", fence("\n".join(lines))] if lines else []
    return [_folded(TITLE, "\n\n".join(parts))]


def _events(diagnosis: Diagnosis, hide: Redactor) -> list[str]:
    newest = shown_events(diagnosis, EVENT_ROWS)
    if not newest.events:
        return []
    started = diagnosis.case.job.started
    rows = (
        (format_moment(event.at, started), event.who, text.cut(event.sentence, LONGEST_CELL))
        for event in hide(newest.events)
    )
    table = _table(("when", "who", "what"), rows)
    note = f"{format_count(newest.left_out, 'earlier event')} left out.\n\n" * bool(newest.left_out)
    return [_folded("What happened", note + table)]


def _table(head: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head)]
    lines += [[_escape_inline(cell) for cell in row] for row in body]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _folded(title: str, body: str, *, is_open: bool = False) -> str:
    return f"<details{' open' * is_open}>\n<summary>{title}</summary>\n\n{body}\n\n</details>"


def _coverage(diagnosis: Diagnosis) -> str:
    if diagnosis.coverage is None:
        why = escape(diagnosis.coverage_reason or "no reason given")
        return f"No phase times: {why}"
    clocks = name_clocks(diagnosis.ranks)
    timed = f", timed {clocks}," if clocks else ""
    explained = f"The phases{timed} explain {format_share(diagnosis.coverage)} of the time."
    return escape(f"{explained} {summarize_timing(diagnosis.ranks)}".rstrip())


def _gaps(diagnosis: Diagnosis) -> Iterable[str]:
    for gap in diagnosis.unexamined:
        remedy = f"; {escape(gap.remedy)}" if gap.remedy else ""
        yield f"- {escape(gap.probe)}: {escape(gap.reason)}{remedy}"
