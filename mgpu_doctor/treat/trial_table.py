"""The result of a session of trials as text for a terminal."""

from __future__ import annotations

import math
import shlex
import textwrap
from collections.abc import Iterable, Iterator, Sequence

from mgpu_doctor.advice.treatment import Effect, Treatment, Value
from mgpu_doctor.advice.treatment_catalogue import ADVICE, TREATMENTS, describe_values
from mgpu_doctor.analysis.trials.memory_effect import MemoryChange
from mgpu_doctor.analysis.trials.paired_effect import Saving
from mgpu_doctor.analysis.trials.trial_verdict import Verdict
from mgpu_doctor.formatting import format_bytes, format_count, format_seconds, format_share
from mgpu_doctor.report.text import line
from mgpu_doctor.treat.trial_outcome import Outcome
from mgpu_doctor.treat.trial_report import TrialReport

_VERDICTS = {
    Verdict.HELPS: "helps",
    Verdict.NO_DIFFERENCE: "no difference shown",
    Verdict.WORSE: "worse",
    Verdict.CHANGES_LOSS: "changes the loss",
    Verdict.FAILS: "fails",
    Verdict.DOES_NOT_FIT: "does not fit",
    Verdict.UNTRIED: "not tried",
}
_INDENT, _DEEP = "  ", "    "
COARSE = 0.1
"""Half of an interval from which the report says that trials were too coarse. A choice."""
_HEAD = ("treatment", "verdict", "step time", "95 % interval", "predicted", "memory", "loss")
_MEMORY_HEAD = (
    "treatment",
    "verdict",
    "memory per rank",
    "change",
    "95 % interval",
    "step time",
    "95 % interval",
    "loss",
)
_EFFECTS = {
    Effect.NOTHING: "does not change the result",
    Effect.ROUNDING: "may change rounding",
    Effect.CONVERGENCE: "may change convergence",
}


def render_report(report: TrialReport, *, width: int, unicode: bool) -> str:
    """The table, the reasons, and what to write to keep what helps."""
    head, write_row = (_MEMORY_HEAD, _memory_row) if report.by_memory else (_HEAD, _row)
    rows = [write_row(report, outcome, unicode=unicode) for outcome in report.outcomes]
    parts = [_baseline(report)]
    if rows:
        parts += ["", *_align([head, *rows])]
    reasons = [
        f"{names}: {line(reason)}."
        for reason, names in _group_by_reason(
            (outcome.reason, describe_values(outcome.values))
            for outcome in report.outcomes
            if outcome.reason
        )
    ]
    parts += ["", *_wrap(reasons, width)] if reasons else []
    switched = [describe_values(each.values) for each in report.outcomes if each.switched]
    if switched:
        sentence = f"Switched on and off within the same runs: {', '.join(switched)}."
        parts += ["", *_wrap([sentence], width)]
    if coarse := _describe_noise(report.outcomes):
        parts += ["", *_wrap([coarse], width)]
    unfit = [
        f"{names} ({line(reason)})"
        for reason, names in _group_by_reason(
            (each.reason, each.name) for each in report.unfit if not each.fits
        )
    ]
    waiting = [each.name for each in report.unfit if each.fits]
    if unfit:
        parts += ["", *_wrap([f"Do not fit: {'; '.join(unfit)}."], width)]
    if waiting:
        parts += ["", *_wrap([f"Tried only with --only NAME: {', '.join(waiting)}."], width)]
    parts += ["", *_kept(report)]
    return "\n".join(parts) + "\n"


def render_list(*, width: int) -> str:
    """All treatments, with what they may change and what they need."""
    lines: list[str] = []
    for treatment in TREATMENTS.values():
        values = treatment.values
        value = "" if values is None else f"=N ({values[0]} to {values[-1]})"
        lines.append(f"{treatment.name}{value}")
        lines += _wrap([f"{treatment.summary}.", _describe(treatment)], width, _DEEP, _DEEP)
    lines += ["", "Only an edit of the script can do this:"]
    for advice in ADVICE:
        lines += _wrap([f"{advice.summary}: {advice.reason}."], width, _INDENT, _DEEP)
        lines.append(f"{_DEEP}{advice.lines}")
    return "\n".join(lines) + "\n"


def _describe(treatment: Treatment) -> str:
    how = "set in the environment" if treatment.environment else "set by the probe"
    framework = treatment.framework or "any framework"
    strategies = f", with {treatment.strategy_names}" if treatment.strategies else ""
    named = "; tried only if you name it" if treatment.waits_to_be_named else ""
    untried = "; not tried yet: needs a GPU" if treatment.needs_gpu else ""
    effect = _EFFECTS[treatment.effect]
    return f"{framework}{strategies}; {effect}; {how}{named}{untried}. {treatment.needs}"


def _baseline(report: TrialReport) -> str:
    error = report.baseline.error
    noise = "" if error is None else f", standard error {format_share(error)}"
    findings = f"; findings: {', '.join(report.codes)}" if report.codes else ""
    return (
        f"As it is: {format_seconds(report.baseline.seconds)} per step{noise} "
        f"({format_count(report.runs, 'run')} of {report.steps} steps){findings}"
    )


def _describe_noise(outcomes: Sequence[Outcome]) -> str:
    """That equal runs of the job differ too much to show what may be worth a change; empty: they do
    not."""
    undecided = [
        (outcome.decisive.high - outcome.decisive.low) / 2
        for outcome in outcomes
        if outcome.verdict is Verdict.NO_DIFFERENCE and outcome.decisive is not None
    ]
    least = max(undecided, default=0.0)
    if least < COARSE:
        return ""
    hidden = "Even large differences"
    if least < 1:
        hidden = f"Differences of less than about {format_share(least)}"
    return (
        f"{hidden} could not be shown: equal runs of the job differ too much. Use more steps "
        "(--steps), a larger --budget, or an otherwise idle machine."
    )


def _group_by_reason(reasons: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Each reason once, with the names that have it."""
    names: dict[str, list[str]] = {}
    for reason, name in reasons:
        names.setdefault(reason, []).append(name)
    return ((reason, ", ".join(alike)) for reason, alike in names.items())


def _row(report: TrialReport, outcome: Outcome, *, unicode: bool) -> tuple[str, ...]:
    candidate = report.find_candidate(outcome)
    predicted = candidate.ratio if candidate is not None else None
    return (
        describe_values(outcome.values),
        _VERDICTS[outcome.verdict],
        *_interval(outcome.saved, unicode=unicode),
        "" if predicted is None else _change(predicted - 1),
        "" if outcome.memory_bytes is None else format_bytes(outcome.memory_bytes),
        _loss(outcome),
    )


def _memory_row(_: TrialReport, outcome: Outcome, *, unicode: bool) -> tuple[str, ...]:
    memory = outcome.memory
    return (
        describe_values(outcome.values),
        _VERDICTS[outcome.verdict],
        "" if memory is None else describe_memory(memory, unicode=unicode),
        *_interval(None if memory is None else memory.saved, unicode=unicode),
        *_interval(outcome.saved, unicode=unicode),
        _loss(outcome),
    )


def describe_memory(memory: MemoryChange, *, unicode: bool) -> str:
    """`612 MiB ± 2 MiB → 434 MiB ± 1 MiB`: the means before and after, and the standard deviations
    between equal runs."""
    give, arrow = ("±", "→") if unicode else ("+-", "->")
    return f" {arrow} ".join(
        format_bytes(peak.bytes)
        + ("" if peak.spread is None else f" {give} {format_bytes(peak.spread)}")
        for peak in (memory.before, memory.after)
    )


def _interval(saved: Saving | None, *, unicode: bool) -> tuple[str, str]:
    if saved is None:
        return "", ""
    between = "…" if unicode else ".."
    return _change(-saved.share), f"{_change(-saved.high)} {between} {_change(-saved.low)}"


def _loss(outcome: Outcome) -> str:
    loss = outcome.loss
    if loss is None:
        return ""
    if not math.isfinite(loss.difference):
        return "is no number"
    if loss.is_change:
        return f"differs by {format_share(loss.difference)}"
    return f"within {format_share(loss.limit)}"


def _change(share: float) -> str:
    """A signed percentage."""
    text = format_share(abs(share))
    return text if share == 0 else f"{'-' if share < 0 else '+'}{text}"


def _align(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    used = [place for place in range(len(rows[0])) if any(row[place] for row in rows[1:])]
    widths = {place: max(len(row[place]) for row in rows) for place in used}
    for row in rows:
        yield "  ".join(row[place].ljust(widths[place]) for place in used).rstrip()


def _wrap(
    sentences: Sequence[str], width: int, first: str = "", rest: str = _INDENT
) -> Iterator[str]:
    """Lines of each sentence, with these indents of its first line and of the others."""
    for sentence in sentences:
        yield from textwrap.wrap(
            sentence,
            width,
            break_on_hyphens=False,
            initial_indent=first,
            subsequent_indent=rest,
        )


def _kept(report: TrialReport) -> Iterator[str]:
    if not report.kept:
        yield "Nothing is shown to help." if report.was_tried else "Nothing was tried."
        return
    yield "To keep what helps:"
    sites = {
        name: outcome.sites
        for outcome in report.outcomes
        if len(outcome.values) == 1
        for name in outcome.values
    }
    for name, value in report.kept.items():
        # Not wrapped: it is there to be copied.
        yield f"{_INDENT}{_write(report, name, value)}{_where(sites.get(name, ()))}"


def _write(report: TrialReport, name: str, value: Value) -> str:
    treatment = TREATMENTS[name]
    lines = treatment.write_lines(value)
    if treatment.environment:
        return f"{lines} {shlex.join(report.command)}"
    return lines


def _where(sites: Sequence[str]) -> str:
    return f"  at {', '.join(map(line, sites))}" if sites else ""
