"""The command lines that read foreign files: what is typed, and which exit codes may follow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

EXAMINED = frozenset({0, 1, 3})
"""`diagnose` and `compare` (the contract's exit codes). Nothing is typed wrong here, so 2 is a
bug."""
PLAIN = frozenset({0, 3})


@dataclass(frozen=True, slots=True)
class View:
    """`words` may name `{subject}`, `{honest}` (a real recording) and `{out}`, a folder that is
    empty. `typed`: what comes on standard input."""

    name: str
    words: tuple[str, ...]
    codes: frozenset[int] = PLAIN
    typed: str | None = None


TEXT = View("text", ("diagnose", "{subject}"), EXAMINED)
JSON = View("json", ("diagnose", "{subject}", "--json"), EXAMINED)
_BESIDE = (
    View("with-recording", ("diagnose", "{honest}", "{subject}"), EXAMINED),
    View("with-recording-json", ("diagnose", "{subject}", "{honest}", "--json"), EXAMINED),
)
_OF_RECORDINGS = (
    TEXT,
    View("html", ("report", "{subject}", "-o", "{out}/r.html")),
    JSON,
    View("replay", ("top", "--once", "--replay", "{subject}")),
    View("markdown", ("report", "{subject}")),
    View("timeline", ("export", "{subject}", "--timeline", "{out}/t.json", "--csv", "{out}/s.csv")),
    View("compare", ("compare", "{honest}", "{subject}", "-o", "{out}/c.html"), EXAMINED),
    View("report-json", ("report", "{subject}", "-o", "{out}/r.json")),
    View("replay-json", ("top", "--json", "--replay", "{subject}")),
    View("names", ("report", "{subject}", "-o", "{out}/r.md", "--no-redact")),
    View("shown", ("runs", "show", "{subject}")),
    View("compare-json", ("compare", "{subject}", "{honest}", "--json"), EXAMINED),
    View("once", ("top", "--once", "{subject}")),
    View("listed", ("runs",)),
    View("compare-text", ("compare", "{subject}", "{honest}", "-o", "{out}/c.md"), EXAMINED),
    View("parquet", ("export", "{subject}", "--parquet", "{out}/s.parquet")),
    View("listed-json", ("runs", "--json")),
    View("scalars", ("export", "{subject}", "--tensorboard", "{out}/scalars")),
)
_OF_FILES = (TEXT, JSON, *_BESIDE, View("refused", ("report", "{subject}")))
VIEWS: dict[str, Sequence[View]] = {
    "recordings": _OF_RECORDINGS,
    "boxes": _OF_RECORDINGS,
    "dumps": _OF_FILES,
    "traces": _OF_FILES,
    "logs": (
        *_OF_FILES,
        View("typed", ("diagnose", "-"), EXAMINED, typed="{subject}"),
        View("typed-json", ("diagnose", "-", "--json"), EXAMINED, typed="{subject}"),
    ),
    "snapshots": _OF_FILES,
}


def chosen(format: str, index: int, rng: Random, count: int | None) -> tuple[View, ...]:
    """`count` of the views of a format, all of them by and by; all at once for None."""
    views = VIEWS[format]
    if count is None:
        return tuple(views)
    if count == 1:
        return (views[index % len(views)],)
    common = rng.choice(views[:4])
    rest = [view for view in views if view is not common]
    turn = [rest[(index * (count - 1) + step) % len(rest)] for step in range(count - 1)]
    return (common, *turn)
