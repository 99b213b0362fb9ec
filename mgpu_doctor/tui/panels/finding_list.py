"""The list of findings, and one finding in full at any width. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from mgpu_doctor.case.treatment_proofs import TreatmentProof
from mgpu_doctor.findings import Culprit, Diagnosis, Evidence, Finding, Followed
from mgpu_doctor.formatting import format_ranks, format_seconds, format_share
from mgpu_doctor.live.finding_history import select_recent
from mgpu_doctor.live.frame import Frame
from mgpu_doctor.report import text
from mgpu_doctor.report.proof_text import describe_proofs
from mgpu_doctor.report.verdict import MARKS, STYLES, Tone, cost, gain, name_culprits
from mgpu_doctor.tui.filter.matching import kept
from mgpu_doctor.tui.panels.table_cells import DIM, ends
from mgpu_doctor.tui.view import View

if TYPE_CHECKING:
    from rich.console import ConsoleOptions, RenderResult

    from mgpu_doctor.rules.rule import Rule


def finding_lines(frame: Frame, width: int, view: View) -> list[Text]:
    diagnosis = frame.diagnosis
    if diagnosis is None:
        return []
    gone = [_gone(followed, frame.at, width) for followed in select_recent(frame.followed)]
    if not diagnosis.findings:
        return [Text("no finding", style=DIM), *gone]
    selected = min(view.finding, len(diagnosis.findings) - 1)
    there = [
        finding_line(finding, width, "> " if place == selected else "  ")
        for place, finding in enumerate(diagnosis.findings)
    ]
    return there + gone


def finding_line(finding: Finding, width: int, mark: str = "") -> Text:
    """Returns a finding in one line. `mark`: what stands before it."""
    tone = Tone(finding.severity.value)
    shown = Text.assemble(
        (mark, "bold"),
        (f"{MARKS[tone]} ", STYLES[tone]),
        (f"{finding.code}  ", "bold"),
        (text.line(finding.title), ""),
    )
    return ends(shown, Text(cost(finding.cost) or "", style=DIM), width)


def _gone(followed: Followed, now: float, width: int) -> Text:
    """Returns the line of a resolved finding."""
    mark, style = MARKS[Tone.GOOD], STYLES[Tone.GOOD]
    shown = Text.assemble(
        (f"  {mark} ", style),
        (f"{followed.finding.code}  {text.line(followed.finding.title)}", DIM),
    )
    ago = format_seconds(max(0.0, round(now - (followed.resolved or now))))
    return ends(shown, Text(f"resolved {ago} ago", style=DIM), width)


def selected_finding_lines(diagnosis: Diagnosis, width: int, view: View) -> list[Text]:
    """Returns the lines of the selected finding's details."""
    selected = diagnosis.findings[min(view.finding, len(diagnosis.findings) - 1)]
    return FindingDetails(selected, diagnosis.step_seconds, diagnosis.case.tried).lines(width)


LABEL = 10
"""Cells of the word `evidence` and the space after it. A longer label is followed by one space."""
LONGEST_FACT = 28
"""Cells of two quantities. A longer fact is quoted text and gets its own lines."""
LEAST = 12
"""Minimum cells of a column of words, even on a narrow screen."""


@dataclass(frozen=True, slots=True)
class FindingDetails:
    """A finding in full, as a Rich renderable that wraps to the given width. `rule`: its
    explanation follows."""

    finding: Finding
    step_seconds: float | None
    """The job's figures, from which gains are computed."""
    tried: tuple[TreatmentProof, ...] = ()
    """What trials of treatments showed about the job."""
    rule: Rule | None = None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        del console
        yield from self.lines(options.max_width)

    def lines(self, width: int) -> list[Text]:
        lines = _lines(self.finding, self.step_seconds, self.tried, width)
        return [*lines, *_explanation(self.rule, width)] if self.rule is not None else lines


@kept
def _lines(
    finding: Finding, step_seconds: float | None, tried: tuple[TreatmentProof, ...], width: int
) -> list[Text]:
    """Returns the lines; cached, because the screen draws them many times."""
    fixes = [*_fixes(finding, step_seconds, tried, width), *_other_causes(finding, width)]
    return [*_head(finding, width), *fixes, Text(), *_body(finding, width)]


def _head(finding: Finding, width: int) -> Iterator[Text]:
    tone = Tone(finding.severity.value)
    mark, style = MARKS[tone], STYLES[tone]
    yield from hanging(Text(f"{mark} ", style=style), Text(text.line(finding.title)), width, style)
    since = f", from step {finding.since_step}" if finding.since_step else ""
    sure = format_share(finding.confidence)
    known = f"{finding.code}, {finding.severity.value}, confidence {sure}{since}"
    yield from hanging(Text(), Text(known), width, DIM)


def _body(finding: Finding, width: int) -> Iterator[Text]:
    victims = format_ranks(finding.victims) if finding.victims else ""
    yield from _labelled("who", name_culprits(finding), width)
    yield from _labelled("affects", victims, width)
    yield from _labelled("why", finding.cause, width)
    yield from _labelled("costs", cost(finding.cost) or "", width)
    for place, fact in enumerate(_evidence(finding.evidence, finding.culprits, width - LABEL)):
        yield Text.assemble((f"{'' if place else 'evidence':{LABEL}}", "cyan"), fact)


def _fixes(
    finding: Finding, step_seconds: float | None, tried: tuple[TreatmentProof, ...], width: int
) -> Iterator[Text]:
    """Returns the lines of the fixes. A gain shared by several is shown with the first."""
    shown = None
    for place, fix in enumerate(finding.fixes):
        yield Text()
        yield from _labelled("or" if place else "fix", fix.summary, width, "bold")
        for line in text.details(fix.how, fix.summary).splitlines():
            bar = Text(f"{'':{LABEL}}│ ", style="bold cyan")
            yield from hanging(bar, Text(line), width, "bold cyan", again=bar)
        gained = gain(fix.predicted, step_seconds)
        yield from _labelled("gain", gained or "" if gained != shown else "", width, "green")
        shown = gained or shown
        yield from _labelled("tried", describe_proofs(fix, tried), width, "green")


def _other_causes(finding: Finding, width: int) -> Iterator[Text]:
    """Returns the causes that were ruled out or not measured, below what to do."""
    known = (("ruled out", finding.ruled_out), ("not measured", finding.not_measured))
    for label, causes in known:
        if causes:
            yield Text()
            yield from _labelled(label, ", ".join(causes), width)


def _evidence(
    evidence: Sequence[Evidence], culprits: Sequence[Culprit], width: int
) -> Iterator[Text]:
    """Returns the lines of evidence: numbers first, in a column. A source shared by all is named
    once, below."""
    facts = [text.compared(item) for item in evidence]
    longest = min(LONGEST_FACT, width // 2)
    column = max((len(fact) for fact in facts if len(fact) <= longest), default=0)
    obvious = {f"rank {culprit.rank}" for culprit in culprits}
    sources = list(dict.fromkeys(text.line(item.source) for item in evidence if item.source))
    for fact, item in zip(facts, evidence, strict=True):
        words = Text(text.line(item.measure))
        if item.where and item.where not in obvious:
            words.append(f", {text.line(item.where)}")
        if item.source and len(sources) > 1:
            words.append(f"  {text.line(item.source)}", style=DIM)
        if len(fact) <= longest:
            yield from hanging(Text(f"{fact:{column}}  ", style="bold"), words, width)
        else:
            yield from hanging(Text(), words.append(":"), width)
            yield from hanging(Text("  "), Text(fact), width, "bold")
    if len(sources) == 1:
        yield from hanging(Text(), Text(f"({sources[0]})"), width, DIM)


def _explanation(rule: Rule, width: int) -> Iterator[Text]:
    """Returns what findings of this kind mean in general, below what was found here."""
    from mgpu_doctor.report.rule_reference import explained

    yield Text()
    yield from hanging(Text(f"{rule.code}  ", style="bold"), Text(rule.summary), width)
    for title, items, indent in explained(rule):
        yield Text()
        yield Text(title, style="cyan")
        for item in items:
            yield from hanging(Text("  "), Text(item), width, again=Text(f"  {indent}"))


def _labelled(label: str, content: str, width: int, style: str = "") -> Iterator[Text]:
    if content:
        head = Text(f"{label:{LABEL - 1}} ", style="cyan")
        yield from hanging(head, Text(text.line(content)), width, style)


def hanging(
    head: Text, words: Text, width: int, style: str = "", *, again: Text | None = None
) -> Iterator[Text]:
    """Returns `words` wrapped to the right of `head`; further lines begin with `again`, else with
    blanks."""
    words.stylize(style)
    room = max(LEAST, width - head.cell_len)
    below = again if again is not None else Text(" " * head.cell_len)
    for place, part in enumerate(words.wrap(_console(), room)):
        yield Text.assemble(below if place else head, part)


@cache
def _console() -> Console:
    """Returns the console that Rich needs to wrap text; nothing is printed on it."""
    return Console()
