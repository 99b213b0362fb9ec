"""A comparison as one self-contained page, in the style of the reports."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from mgpu_doctor.analysis.comparing.comparison import Comparison
from mgpu_doctor.formatting import format_seconds
from mgpu_doctor.report import comparison_text, phase_bars, text
from mgpu_doctor.report.html.page import page
from mgpu_doctor.report.html.sections import escape_line
from mgpu_doctor.report.verdict import MARKS


def render_comparison_html(compared: Comparison) -> str:
    """Returns the whole document."""
    conclusion = comparison_text.headline(compared)
    mark = f'<span class="mark">{MARKS[conclusion.tone]}</span>'
    heading = f"<h1>{mark} {escape_line(conclusion.sentence)}</h1>"
    pairs = map(comparison_text.describe_pair, compared.pairs) if len(compared.pairs) > 1 else ()
    sections = [
        f"<header>{heading}</header>",
        _about(compared),
        f"<h2>Figures</h2>\n{_html_figures(compared)}",
        f"<h2>Where a step's time goes</h2>\n{_html_phases(compared)}",
        _html_list("Differences", pairs),
        _html_list("Costs and gains", comparison_text.gains(compared)),
        _html_list("Caveats", comparison_text.notes(compared)),
    ]
    title = f"{text.cut(conclusion.sentence, 80)} – mgpu-doctor"
    return page(title, conclusion.tone.value, "\n".join(section for section in sections if section))


def _about(compared: Comparison) -> str:
    pairs = (
        f"<dt>{name}</dt><dd>{escape_line(facts)}</dd>"
        for name, facts in comparison_text.describe_runs(compared)
    )
    return f"<dl>{''.join(pairs)}</dl>"


def _html_figures(compared: Comparison) -> str:
    columns = comparison_text.columns(compared)
    kinds = [' class="number"' if column.number else "" for column in columns]
    heads = "".join(
        f"<th{kind}>{escape_line(column.head)}</th>"
        for kind, column in zip(kinds, columns, strict=True)
    )
    rows = (
        "".join(
            f"<td{kind}>{escape_line(cell)}</td>" for kind, cell in zip(kinds, cells, strict=True)
        )
        for cells in zip(*(column.cells for column in columns), strict=True)
    )
    return _html_table(heads, rows)


def _html_phases(compared: Comparison) -> str:
    spent = comparison_text.time_spent(compared)
    scale = max(sum(run.phases.values()) for run in spent)
    heads = (
        '<th></th><th class="number">waits</th><th class="number">memory</th>'
        f"<th>0 to {escape_line(format_seconds(scale))}</th>"
    )
    rows = (
        f'<td>{run.letter}</td><td class="number">{escape_line(run.in_collectives)}</td>'
        f'<td class="number">{escape_line(run.memory)}</td><td class="bar">{_bar(run, scale)}</td>'
        for run in spent
    )
    used = [name for name in phase_bars.PHASE_STYLES if any(name in run.phases for run in spent)]
    legend = "".join(f"<span>{_swatch(name)}{escape(name)}</span>" for name in used)
    return f'{_html_table(heads, rows, "ranks")}\n<p class="legend small">{legend}</p>'


def _html_table(heads: str, rows: Iterable[str], kind: str = "") -> str:
    body = "\n".join(f"<tr>{row}</tr>" for row in rows)
    return (
        f'<div class="wide"><table class="{kind}"><thead><tr>{heads}</tr></thead>\n'
        f"<tbody>{body}</tbody></table></div>"
    )


def _bar(spent: comparison_text.RunTimes, scale: float) -> str:
    if scale <= 0:
        return ""
    x = 0.0
    drawn = []
    for name, seconds in spent.phases.items():
        width = seconds / scale * 1000
        drawn.append(
            f'<rect class="{name}" x="{x:.1f}" y="0" width="{width:.1f}" height="16">'
            f"<title>{escape(name)} {escape(format_seconds(seconds))}</title></rect>"
        )
        x += width
    label = ", ".join(f"{name} {format_seconds(value)}" for name, value in spent.phases.items())
    return (
        '<svg viewBox="0 0 1000 16" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(label)}">{"".join(drawn)}</svg>'
    )


def _swatch(name: str) -> str:
    return (
        f'<svg viewBox="0 0 10 10" aria-hidden="true"><rect class="{name}" width="10" height="10">'
        "</rect></svg>"
    )


def _html_list(title: str, sentences: Iterable[str]) -> str:
    items = "\n".join(f"<li>{escape_line(sentence)}</li>" for sentence in sentences)
    return f"<h2>{title}</h2>\n<ul>{items}</ul>" if items else ""
