"""The results so far, which are kept as JSON, and the page that shows them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.matrix.checks import checks_of
from tests.matrix.environments import ENVIRONMENTS, ROOT, Environment, Framework
from tests.matrix.verdicts import Outcome, Verdict

RESULTS = ROOT / "tests" / "recorded" / "compatibility.json"
PAGE = ROOT / "docs" / "compatibility.md"
NOT_RUN = Verdict(Outcome.NOT_RUN)
PACKAGES = {
    Framework.TORCH: {"torch": "torch", "build": "build", "numpy": "NumPy"},
    Framework.TENSORFLOW: {
        "tensorflow-cpu": "tensorflow-cpu",
        "keras": "Keras",
        "tf-keras": "tf-keras",
        "numpy": "NumPy",
    },
}
"""The rows of versions: the name in the results, and the row's."""
INTRODUCTION = """\
# Compatibility

`make matrix` wrote this page. Each column is a fresh environment with the package index's own
builds, on a machine without a GPU: ranks are on CPUs and meet through gloo. *Works* means that a
real job, on two or three ranks, gave the expected steps, finding and rank. *Refuses* means one
sentence and exit code 2 before anything starts. *Not run* says nothing about a version. The numbers
lead to the notes below each table.

```sh
make matrix                                        # all: hours, several GB for each environment
make matrix MATRIX="torch-2.4 torch-2.15"          # these environments
make matrix MATRIX="torch-2.4 --only plan --keep"  # checks with this word; keeps the environment
```
"""


@dataclass(frozen=True)
class Result:
    """What is known of one environment. `reason`: why it was not made; `verdicts`: by check."""

    date: str
    versions: Mapping[str, str] = field(default_factory=dict)
    reason: str | None = None
    install_seconds: float | None = None
    install_bytes: int | None = None
    verdicts: Mapping[str, Verdict] = field(default_factory=dict)


Results = Mapping[str, Result]


def load(path: Path = RESULTS) -> dict[str, Result]:
    """By the environment's name; nothing where nothing was run."""
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


def save(results: Results, path: Path = RESULTS) -> None:
    """Environments and checks in the order in which they are defined."""
    kept = {}
    for environment in ENVIRONMENTS:
        result = results.get(environment.name)
        if result is None:
            continue
        verdicts = {
            check.name: [verdict.outcome.value, verdict.detail]
            for check in checks_of(environment.framework)
            if (verdict := result.verdicts.get(check.name)) is not None
        }
        kept[environment.name] = {**result.__dict__, "verdicts": verdicts}
    path.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def merge(earlier: Result | None, newer: Result) -> Result:
    """The newer verdicts beside earlier ones of the same versions; what installing took, of the run
    that installed."""
    if earlier is None or earlier.versions != newer.versions:
        return newer
    merged = replace(newer, verdicts={**earlier.verdicts, **newer.verdicts})
    if newer.install_seconds is not None:
        return merged
    seconds, size = earlier.install_seconds, earlier.install_bytes
    return replace(merged, install_seconds=seconds, install_bytes=size)


def render(results: Results) -> str:
    """The whole page."""
    tables = [
        "\n".join(_render_table(framework, results))
        for framework in (Framework.TORCH, Framework.TENSORFLOW)
    ]
    return "\n".join([INTRODUCTION, *tables])


def _render_table(framework: Framework, results: Results) -> Iterator[str]:
    title = {Framework.TORCH: "PyTorch", Framework.TENSORFLOW: "TensorFlow and Keras"}[framework]
    own = [each for each in ENVIRONMENTS if each.framework is framework]
    shown = [environment for environment in own if environment.name in results]
    columns = [results[environment.name] for environment in shown]
    notes: list[str] = []
    yield f"## {title}\n"
    if missed := [_title(environment) for environment in own if environment not in shown]:
        yield f"Not run so far: {', '.join(missed)}.\n"
    if not shown:
        return
    yield _row("", (_title(environment) for environment in shown))
    yield _row("---", ("---" for _ in shown))
    yield from _describe(framework, columns, notes)
    for check in checks_of(framework):
        verdicts = [result.verdicts.get(check.name, NOT_RUN) for result in columns]
        yield _row(check.name, (_cell(verdict, notes) for verdict in verdicts))
    yield ""
    yield from (f"{number}. {note}" for number, note in enumerate(notes, 1))
    yield ""


def _title(environment: Environment) -> str:
    """Without the framework, which the table's heading has."""
    return environment.name.partition("-")[2].replace("-", " ")


def _describe(framework: Framework, columns: Sequence[Result], notes: list[str]) -> Iterator[str]:
    """The rows about the environments themselves."""
    yield _row(
        "Python",
        (
            result.versions.get("python", "")
            if result.reason is None
            else f"not tried{_note(result.reason, notes)}"
            for result in columns
        ),
    )
    for name, title in PACKAGES[framework].items():
        yield _row(title, (result.versions.get(name, "") for result in columns))
    yield _row("installed", (_size(result) for result in columns))
    yield _row("date", (result.date for result in columns))


def _size(result: Result) -> str:
    if result.install_bytes is None or result.install_seconds is None:
        return ""
    return f"{result.install_bytes / 1e9:.1f} GB in {result.install_seconds:.0f} s"


def _cell(verdict: Verdict, notes: list[str]) -> str:
    return f"{verdict.outcome.value}{_note(verdict.detail, notes)}"


def _note(detail: str, notes: list[str]) -> str:
    """The number of a note with this text, which is made once."""
    if not detail:
        return ""
    text = detail.replace("|", "\\|").replace("<", "&lt;")
    if text not in notes:
        notes.append(text)
    return f" [{notes.index(text) + 1}]"


def _row(first: str, cells: Iterable[str]) -> str:
    return f"| {' | '.join([first, *cells])} |"
