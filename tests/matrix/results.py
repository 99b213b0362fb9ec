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
            check: Verdict(Outcome(outcome), detail, *map(tuple, earlier))
            for check, (outcome, detail, *earlier) in values.pop("verdicts").items()
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
            check: _keep(verdict)
            for check in checks
            if (verdict := result.verdicts.get(check)) is not None
        }
        values = {key: value for key, value in result.__dict__.items() if value is not None}
        kept[name] = {**values, "verdicts": verdicts}
    path.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _keep(verdict: Verdict) -> list[object]:
    """As JSON: the tries before it are the third part, where they were counted."""
    kept: list[object] = [verdict.outcome.value, verdict.detail]
    return kept if verdict.earlier is None else [*kept, verdict.earlier]


def merge(earlier: Result | None, newer: Result) -> Result:
    """The newer verdicts beside earlier ones of the same versions; what installing took, of the run
    that installed; the overhead, of the run that measured it. An environment that cannot be made
    today loses nothing that was measured."""
    if newer.reason is not None and earlier is not None and earlier.verdicts:
        return earlier
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


def count_tries(earlier: Result | None, newer: Result) -> Result:
    """The newer verdicts, with the tries of an earlier run of the same versions that failed."""
    if earlier is None or earlier.versions != newer.versions:
        return newer
    verdicts = dict(newer.verdicts)
    for check, verdict in newer.verdicts.items():
        before = earlier.verdicts.get(check)
        if before is not None and before.outcome is Outcome.FAILS:
            tries = (*(before.earlier or ()), before.detail, *(verdict.earlier or ()))
            verdicts[check] = replace(verdict, earlier=tries)
    return replace(newer, verdicts=verdicts)


def make_cell(verdict: Verdict, notes: list[str]) -> str:
    """The outcome, which try gave it where others failed before, and the numbers of notes with its
    detail and with theirs."""
    cell = f"{verdict.outcome.value}{make_note(verdict.detail, notes)}"
    if not verdict.earlier:
        return cell
    failed = "; ".join(dict.fromkeys(verdict.earlier))
    return f"{cell} (try {len(verdict.earlier) + 1}){make_note(f'earlier: {failed}', notes)}"


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
