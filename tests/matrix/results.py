"""Results of checks, which are kept as JSON, and how a table shows them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.matrix.verdicts import Outcome, Verdict


@dataclass(frozen=True)
class Result:
    """What is known of one row or column. `reason`: why nothing was run; `verdicts`: by check;
    `overhead`: what the doctor costs a step, where it was measured."""

    date: str
    versions: Mapping[str, str] = field(default_factory=dict)
    reason: str | None = None
    install_seconds: float | None = None
    install_bytes: int | None = None
    verdicts: Mapping[str, Verdict] = field(default_factory=dict)
    overhead: str | None = None


Results = Mapping[str, Result]


def load(path: Path) -> dict[str, Result]:
    """By name; nothing where nothing was run."""
    if not path.exists():
        return {}
    kept: dict[str, dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    results = {}
    for name, values in kept.items():
        verdicts = {
            check: Verdict(Outcome(outcome), detail)
            for check, (outcome, detail) in values.pop("verdicts").items()
        }
        results[name] = Result(**values, verdicts=verdicts)
    return results


def save(results: Results, path: Path, order: Mapping[str, Iterable[str]]) -> None:
    """`order`: names, and the checks of each; what is in neither is dropped."""
    kept = {}
    for name, checks in order.items():
        result = results.get(name)
        if result is None:
            continue
        verdicts = {
            check: [verdict.outcome.value, verdict.detail]
            for check in checks
            if (verdict := result.verdicts.get(check)) is not None
        }
        values = {key: value for key, value in result.__dict__.items() if value is not None}
        kept[name] = {**values, "verdicts": verdicts}
    path.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def merge(earlier: Result | None, newer: Result) -> Result:
    """The newer verdicts beside earlier ones of the same versions; what installing took, of the run
    that installed; the overhead, of the run that measured it."""
    if earlier is None or earlier.versions != newer.versions:
        return newer
    merged = replace(
        newer,
        verdicts={**earlier.verdicts, **newer.verdicts},
        overhead=newer.overhead or earlier.overhead,
    )
    if newer.install_seconds is not None:
        return merged
    seconds, size = earlier.install_seconds, earlier.install_bytes
    return replace(merged, install_seconds=seconds, install_bytes=size)


def make_cell(verdict: Verdict, notes: list[str]) -> str:
    """The outcome, and the number of a note with its detail."""
    return f"{verdict.outcome.value}{make_note(verdict.detail, notes)}"


def make_note(detail: str, notes: list[str]) -> str:
    """The number of a note with this text, which is made once."""
    if not detail:
        return ""
    text = detail.replace("|", "\\|").replace("<", "&lt;")
    if text not in notes:
        notes.append(text)
    return f" [{notes.index(text) + 1}]"


def make_row(first: str, cells: Iterable[str]) -> str:
    """A line of a Markdown table."""
    return f"| {' | '.join([first, *cells])} |"
