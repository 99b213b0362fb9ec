"""A comparison for a ticket: GitHub's Markdown. Host names and paths are not in it, but for what
settings and names of runs hold."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mgpu_doctor.analysis.comparing.comparison import Comparison
from mgpu_doctor.report import phases, text
from mgpu_doctor.report.compared import tables, words
from mgpu_doctor.report.markdown import MARKS, escape


def render(compared: Comparison) -> str:
    """The text, ending in a newline."""
    said = words.headline(compared)
    parts = [
        f"## {MARKS[said.tone]} {escape(said.sentence)}",
        _listed(f"**{name}** {escape(facts)}" for name, facts in words.about(compared)),
        _figures(compared),
        _spent(compared),
    ]
    if len(compared.pairs) > 1:
        parts.append(_listed(escape(words.told(one)) for one in compared.pairs))
    further = words.further(compared)
    parts.append(_listed(escape(sentence) for sentence in further))
    return "\n\n".join(part for part in parts if part) + "\n"


def _figures(compared: Comparison) -> str:
    columns = tables.columns(compared)
    cells = [
        column.cells if column.number else [escape(cell) for cell in column.cells]
        for column in columns
    ]
    return _table([column.head for column in columns], zip(*cells, strict=True))


def _spent(compared: Comparison) -> str:
    spent = tables.spent(compared)
    used = [name for name in phases.LOOKS if any(name in one.phases for one in spent)]
    rows = (
        [one.letter, one.standing, one.memory]
        + [text.seconds(one.phases[name]) if name in one.phases else "" for name in used]
        for one in spent
    )
    return _table(["", "waits", "memory", *used], rows)


def _listed(sentences: Iterable[str]) -> str:
    return "\n".join(f"- {sentence}" for sentence in sentences)


def _table(head: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    """Of cells that are escaped, or figures of ours."""
    lines = [[cell or " " for cell in head], ["---"] * len(head)]
    lines += [list(row) for row in body]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
