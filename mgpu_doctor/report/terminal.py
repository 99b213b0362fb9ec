"""The diagnosis for a terminal, read top-down in ten seconds: verdict, culprit, cause, evidence,
fix, gain; then the ranks, further findings, and known gaps.

Only `Text` objects are printed, never markup: names, messages and paths are untrusted.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from mgpu_doctor.case.model import Unexamined
from mgpu_doctor.case.placeholders import MACHINE
from mgpu_doctor.findings import Culprit, Diagnosis, Evidence, Finding, Fix
from mgpu_doctor.formatting import format_count, format_ranks, format_seconds, format_share
from mgpu_doctor.report import phase_bars, text
from mgpu_doctor.report.console import collecting
from mgpu_doctor.report.device_timing import name_clocks, summarize_timing
from mgpu_doctor.report.phase_bars import rank_lines
from mgpu_doctor.report.proof_text import describe_applied, describe_proofs
from mgpu_doctor.report.stack_tree import tree_lines
from mgpu_doctor.report.verdict import (
    MARKS,
    STYLES,
    Tone,
    cost,
    gain,
    job_line,
    leading,
    name_culprits,
    verdict,
)

NARROWEST, WIDEST = 40, 120
QUOTED = 60
"""Columns; a longer fact is text of the job, and gets its own lines."""
EVIDENCE_LINES = 6
FIX_LINES = 14
FURTHER = 5
WORTH_SHOWING = 0.05
"""Share of the time that waiting for slower ranks costs, from which it is shown."""
UNEXAMINED = 6
LABEL = 9
NOT_MEASURED = "not measured"

ASCII = str.maketrans("✗✓▸·…–—‘’“”×→├└│─", "x+>.~--''\"\"x>|`|-")


def render(
    diagnosis: Diagnosis, *, width: int, colour: bool, unicode: bool = True, verbose: bool = False
) -> str:
    """The text, ending in a newline; no line is longer than `width` cells (at least 40, prose at
    most 120). `unicode=False`: ASCII only, for terminals of another encoding. `verbose`: lists
    which causes were ruled out and what was not measured, instead of counting them."""
    page = _Page(max(NARROWEST, min(width, WIDEST)), colour, verbose)
    conclusion = verdict(diagnosis)
    page.headline(conclusion.tone, conclusion.sentence)
    lead = leading(diagnosis)
    if lead:
        page.indented(Text(_code_line(lead), style="dim"))
    page.indented(Text(text.cut_words(job_line(diagnosis), page.inner), style="dim"))
    if lead:
        page.gap()
        _finding(page, diagnosis, lead)
    if conclusion.tone is not Tone.GOOD and diagnosis.ranks:
        page.gap()
        page.indented(*rank_lines(diagnosis, page.inner))
    elif conclusion.tone is Tone.GOOD:
        page.indented(Text(_split(diagnosis), style="dim"))
        if timing := summarize_timing(diagnosis.ranks):
            page.indented(_prose(timing, page.inner, "dim"))
    if conclusion.tone is not Tone.GOOD:
        _stacks(page, diagnosis)
    _rest(page, diagnosis, lead, brief=conclusion.tone is Tone.GOOD)
    printed = page.text()
    return printed if unicode else _ascii(printed)


class _Page:
    """Lines of a fixed width, collected."""

    def __init__(self, width: int, colour: bool, verbose: bool) -> None:
        self.width = width
        self.verbose = verbose
        self.inner = width - 2
        self.body = self.inner - LABEL - 1
        self._console, self._out = collecting(width, colour=colour)

    def headline(self, tone: Tone, sentence: str) -> None:
        mark, style = MARKS[tone], STYLES[tone]
        grid = _grid(1)
        grid.add_row(
            Text(mark, style=style),
            Text(text.cut_words(text.cut(sentence, 400), self.inner), style="bold"),
        )
        self._console.print(grid)

    def indented(self, *parts: RenderableType) -> None:
        for part in parts:
            self._console.print(Padding(part, (0, 0, 0, 2)))

    def labelled(self, label: str, *parts: RenderableType) -> None:
        grid = _grid(max(LABEL, len(label)))
        for i, part in enumerate(parts):
            grid.add_row(Text("" if i else label, style="cyan"), part)
        self.indented(grid)

    def gap(self) -> None:
        self._console.print()

    def text(self) -> str:
        return re.sub(r"[ ]+$", "", self._out.getvalue(), flags=re.MULTILINE)


def _grid(first: int, gap: int = 1) -> Table:
    grid = Table.grid(padding=(0, gap, 0, 0), expand=True)
    grid.add_column(width=first, overflow="fold")
    grid.add_column(ratio=1, overflow="fold")
    return grid


def _prose(message: str, width: int, style: str = "", longest: int = 600) -> Text:
    return Text(text.cut_words(text.cut(text.line(message), longest), width), style=style)


def _code_line(finding: Finding) -> str:
    since = f", since step {finding.since_step}" if finding.since_step else ""
    return (
        f"{finding.code}, {finding.severity.value}, "
        f"confidence {format_share(finding.confidence)}{since}"
    )


def _finding(page: _Page, diagnosis: Diagnosis, finding: Finding) -> None:
    page.labelled("who", _prose(name_culprits(finding), page.body, "bold"))
    if finding.victims:
        page.labelled("affects", _prose(format_ranks(finding.victims), page.body))
    if finding.cause:
        page.labelled("why", _prose(finding.cause, page.body))
    if finding.evidence:
        page.labelled("evidence", *_evidence(finding.evidence, finding.culprits, page.body))
    _other_causes(page, finding)
    spent = cost(finding.cost)
    if spent:
        page.labelled("costs", _prose(spent, page.body))
    last_gain = None
    for i, fix in enumerate(finding.fixes):
        page.gap()
        gained = gain(fix.predicted, diagnosis.step_seconds)
        _fix(page, fix, None if gained == last_gain else gained, first=i == 0)
        last_gain = gained or last_gain
        if tried := describe_proofs(fix, diagnosis.case.tried):
            page.labelled("tried", _prose(tried, page.body, "green"))


def _other_causes(page: _Page, finding: Finding) -> None:
    """Yields the causes that were ruled out or not measured: one line, or their lists."""
    if page.verbose:
        for label, causes in (
            ("ruled out", finding.ruled_out),
            (NOT_MEASURED, finding.not_measured),
        ):
            if causes:
                page.labelled(label, _prose(", ".join(causes), page.body))
        return
    counts = []
    if finding.ruled_out:
        counts.append(f"{format_count(len(finding.ruled_out), 'other cause')} ruled out")
    if finding.not_measured:
        counts.append(f"{format_count(len(finding.not_measured), 'cause')} not measured")
    if counts:
        page.labelled("", _prose(f"{', '.join(counts)} (--verbose)", page.body, "dim"))


def _evidence(
    evidence: Sequence[Evidence], culprits: Sequence[Culprit], width: int
) -> list[RenderableType]:
    """Yields one line per evidence, the number first; a source shared by several is named once,
    below."""
    listed = evidence[:EVIDENCE_LINES]
    facts = [text.compared(item) for item in listed]
    short = [cell_len(fact) for fact in facts if cell_len(fact) <= QUOTED]
    column = min(width * 2 // 5, max(short, default=0))
    sources = {item.source for item in listed}
    obvious = {f"rank {culprit.rank}" for culprit in culprits}
    lines: list[RenderableType] = []
    for fact, item in zip(facts, listed, strict=True):
        room = width - column - 2
        label = text.line(item.measure)
        if item.where and item.where not in obvious:
            label += f", {text.line(item.where)}"
        if cell_len(fact) > QUOTED:
            lines.append(_prose(f"{label}:", width))
            lines.append(Padding(_prose(fact, width - 2, "bold", longest=240), (0, 0, 0, 2)))
            continue
        about = Text(text.cut_words(label, room))
        if item.source and len(sources) > 1:
            about.append(text.cut_words(f"  {text.line(item.source)}", room), style="dim")
        grid = _grid(column, gap=2)
        grid.add_row(Text(text.cut_words(fact, column), style="bold"), about)
        lines.append(grid)
    if len(sources) == 1 and listed[0].source:
        lines.append(_prose(f"({listed[0].source})", width, "dim"))
    if len(evidence) > len(listed):
        lines.append(Text(f"… and {len(evidence) - len(listed)} more", style="dim"))
    return lines


def _fix(page: _Page, fix: Fix, gained: str | None, *, first: bool) -> None:
    """Yields the first fix with its commands, and the summaries of the others."""
    page.labelled("fix" if first else "or", _prose(fix.summary, page.body))
    how = text.details(fix.how, fix.summary).splitlines() if first else []
    if how:
        lines = [Text(instruction, style="bold cyan") for instruction in how[:FIX_LINES]]
        if len(how) > FIX_LINES:
            lines.append(Text(f"… {len(how) - FIX_LINES} lines more in the report", style="dim"))
        page.labelled("", *(Padding(line, (0, 0, 0, 2)) for line in lines))
    if gained:
        page.labelled("gain", _prose(gained, page.body, "green"))


def _stacks(page: _Page, diagnosis: Diagnosis) -> None:
    lines = tree_lines(diagnosis.tree, page.inner)
    if lines:
        page.gap()
    page.indented(*(Text(line.text, style="bold red" if line.culprit else "") for line in lines))


def _rest(page: _Page, diagnosis: Diagnosis, lead: Finding | None, *, brief: bool) -> None:
    """Yields further findings, the coverage, and known gaps."""
    further = [finding for finding in diagnosis.findings if finding is not lead]
    if not brief:
        page.gap()
    if further:
        lines = [line for finding in further[:FURTHER] for line in _short(page, finding)]
        if len(further) > FURTHER:
            lines.append(Text(f"… and {len(further) - FURTHER} more", style="dim"))
        page.labelled("also", *lines)
    if not brief and diagnosis.case.applied is not None:
        page.labelled("treated", _prose(describe_applied(diagnosis.case.applied), page.body, ""))
    if not brief and diagnosis.case.subject.kind != MACHINE:
        page.labelled("measured", _prose(_coverage(diagnosis), page.body, "dim"))
        if timing := summarize_timing(diagnosis.ranks):
            page.labelled("", _prose(timing, page.body, "dim"))
    # Where nothing was found, the gaps are the answer.
    unclear = verdict(diagnosis).tone is Tone.UNKNOWN
    _gaps(page, diagnosis.unexamined, listed=page.verbose or unclear)


def _gaps(page: _Page, gaps: Sequence[Unexamined], *, listed: bool) -> None:
    """Yields what was not measured: one line with its number, or why and what to do for each."""
    if gaps and not listed:
        names = list(dict.fromkeys(text.line(gap.probe) for gap in gaps))
        head, tail = f"{len(gaps)}: ", " (--verbose says why)"
        room = page.body - (len(NOT_MEASURED) - LABEL) - len(head) - len(tail)
        named = ", ".join(names)
        named = named if cell_len(named) <= room else f"{named[: room - 1]}…"
        page.labelled(NOT_MEASURED, Text(f"{head}{named}{tail}", style="dim"))
        return
    most = len(gaps) if page.verbose else UNEXAMINED
    for i, gap in enumerate(gaps[:most]):
        sentence = f"{gap.probe}: {gap.reason}" + (f"; {gap.remedy}" if gap.remedy else "")
        page.labelled("" if i else NOT_MEASURED, _prose(sentence, page.body, "dim", 400))
    if len(gaps) > most:
        page.labelled("", Text(f"… and {len(gaps) - most} more (--verbose)", style="dim"))


def _short(page: _Page, finding: Finding) -> list[Text]:
    tone = Tone(finding.severity.value)
    mark, style = MARKS[tone], STYLES[tone]
    title = Text(f"{mark} ", style=style)
    title.append(_prose(finding.title, page.body - 2, "not bold default", 200))
    spent = cost(finding.cost)
    if spent:
        title.append(f" ({spent})", style="not bold default")
    title.append(f"  {finding.code}", style="not bold dim default")
    lines = [title]
    if finding.fixes:
        lines.append(_prose(f"  fix: {text.line(finding.fixes[0].summary)}", page.body, "dim", 200))
    return lines


def _coverage(diagnosis: Diagnosis) -> str:
    if diagnosis.coverage is None:
        reason = text.line(diagnosis.coverage_reason or "no reason given")
        return f"no phase times: {reason}"
    clocks = name_clocks(diagnosis.ranks)
    timed = f", timed {clocks}," if clocks else ""
    explained = f"the phases{timed} explain {format_share(diagnosis.coverage)} of the time"
    waste = diagnosis.waste_fraction
    if waste is None or waste < WORTH_SHOWING or _has_gain(diagnosis):
        return explained
    return (
        f"{explained}; if no rank ever waited for a slower one, a step would take "
        f"{format_seconds(diagnosis.ideal_step_seconds)}, {format_share(waste)} less"
    )


def _has_gain(diagnosis: Diagnosis) -> bool:
    """Whether a finding says what it costs: a second figure, which also counts the jitter of
    healthy ranks, would contradict it."""
    return any(finding.cost.step_fraction for finding in diagnosis.findings)


def _split(diagnosis: Diagnosis) -> str:
    """Yields one line: where the time of a healthy job goes."""
    spent: dict[str, float] = {}
    for rank in diagnosis.ranks:
        for name, value in phase_bars.measured_phases(rank.phases).items():
            spent[name] = spent.get(name, 0.0) + value
    total = sum(spent.values())
    largest = sorted(spent, key=lambda name: -spent[name])[:3]
    parts = ", ".join(f"{name} {format_share(spent[name] / total)}" for name in largest)
    return f"{parts}; {_coverage(diagnosis)}" if parts else _coverage(diagnosis)


def _ascii(printed: str) -> str:
    return printed.translate(ASCII).replace("µ", "u").encode("ascii", "replace").decode("ascii")
