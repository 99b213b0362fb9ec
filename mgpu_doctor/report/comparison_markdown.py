"""A comparison for a ticket: GitHub's Markdown. It contains no host names and paths, except those
in settings and names of runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mgpu_doctor.analysis.comparing.comparison import Comparison
from mgpu_doctor.formatting import format_seconds
from mgpu_doctor.report import comparison_text, phase_bars
from mgpu_doctor.report.markdown import escape
from mgpu_doctor.report.verdict import MARKS


def render_comparison_markdown(compared: Comparison) -> str:
    """The text, ending in a newline."""
    conclusion = comparison_text.headline(compared)
    parts = [
        f"## {MARKS[conclusion.tone]} {escape(conclusion.sentence)}",
        _markdown_list(
            f"**{name}** {escape(facts)}" for name, facts in comparison_text.describe_runs(compared)
        ),
        _markdown_figures(compared),
        _markdown_phases(compared),
    ]
    if len(compared.pairs) > 1:
        parts.append(
            _markdown_list(escape(comparison_text.describe_pair(pair)) for pair in compared.pairs)
        )
    further = comparison_text.further_sentences(compared)
    parts.append(_markdown_list(escape(sentence) for sentence in further))
    return "\n\n".join(part for part in parts if part) + "\n"


def _markdown_figures(compared: Comparison) -> str:
    columns = comparison_text.columns(compared)
    cells = [
        column.cells if column.number else [escape(cell) for cell in column.cells]
        for column in columns
    ]
    return _markdown_table([column.head for column in columns], zip(*cells, strict=True))


def _markdown_phases(compared: Comparison) -> str:
    spent = comparison_text.time_spent(compared)
    used = [name for name in phase_bars.PHASE_STYLES if any(name in run.phases for run in spent)]
    rows = (
        [run.letter, run.in_collectives, run.memory]
        + [format_seconds(run.phases[name]) if name in run.phases else "" for name in used]
        for run in spent
    )
    return _markdown_table(["", "waits", "memory", *used], rows)


def _markdown_list(sentences: Iterable[str]) -> str:
    return "\n".join(f"- {sentence}" for sentence in sentences)


def _markdown_table(head: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    """Returns a table. Cells must be escaped, or our own numbers."""
    lines = [[cell or " " for cell in head], ["---"] * len(head)]
    lines += [list(row) for row in body]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
