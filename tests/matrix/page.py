"""The page that shows the results so far."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tests.matrix.checks import checks_of
from tests.matrix.environments import ENVIRONMENTS, ROOT, Environment, Framework
from tests.matrix.results import Result, Results, make_cell, make_note, make_row
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
sentence and exit code 2 before anything starts; of `trace`, which refuses a job that runs, exit
code 3. *Not run* says nothing about a version. Numbers in brackets lead to the notes below each
table. A check that fails is tried once more, since a busy machine disturbs timing: *try 2* means
that the first failed, and its note says how; several runs are counted together. Tries before the
evening of 2026-11-27 were not counted. CI runs everything with the torch of development, 2.13.0: on
2026-11-28 the newest that installed as a CPU build, since 2.14.1 and 2.15.0 came with CUDA
(`pip download --no-deps torch==VERSION` shows it: 0.2 GB without CUDA, more with it).
`make matrix MATRIX=--smoke` runs a healthy job and a slow rank with the oldest and the newest
torch, as CI does, and with 12 GB of disk, or half of that one after the other. On 2026-11-28 all
four checks worked at the first try in 152 s on two idle cores. Where an environment cannot be made,
for lack of an index, of disk or of time (`--smoke --within SECONDS`), it is not run, and fails
nothing.

```sh
make matrix                                        # all: hours, several GB for each environment
make matrix MATRIX="torch-2.4 torch-2.15"          # these environments
make matrix MATRIX="torch-2.4 --only plan --keep"  # checks with this word; keeps the environment
```
"""
KERAS = """\
*Keras 2* is `tf_keras`: scripts use it as `tf.keras` if `TF_USE_LEGACY_KERAS=1` is set. The
built-in trainers and `plan` use Keras 3 in every column.
"""


ORDER = {
    environment.name: [check.name for check in checks_of(environment.framework)]
    for environment in ENVIRONMENTS
}
"""Environments and their checks, as the results are kept."""


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
    if framework is Framework.TENSORFLOW:
        yield KERAS
    if missed := [_title(environment) for environment in own if environment not in shown]:
        yield f"Not run so far: {', '.join(missed)}.\n"
    if not shown:
        return
    yield make_row("", (_title(environment) for environment in shown))
    yield make_row("---", ("---" for _ in shown))
    yield from _describe(framework, columns, notes)
    for check in checks_of(framework):
        verdicts = [result.verdicts.get(check.name, NOT_RUN) for result in columns]
        yield make_row(check.name, (make_cell(verdict, notes) for verdict in verdicts))
    yield ""
    yield from (f"{number}. {note}" for number, note in enumerate(notes, 1))
    yield ""


def _title(environment: Environment) -> str:
    """Without the framework, which the table's heading has."""
    return environment.name.partition("-")[2].replace("-", " ")


def _describe(framework: Framework, columns: Sequence[Result], notes: list[str]) -> Iterator[str]:
    """The rows about the environments themselves."""
    yield make_row(
        "Python",
        (
            result.versions.get("python", "")
            if result.reason is None
            else f"not tried{make_note(result.reason, notes)}"
            for result in columns
        ),
    )
    for name, title in PACKAGES[framework].items():
        yield make_row(title, (result.versions.get(name, "") for result in columns))
    yield make_row("installed", (_size(result) for result in columns))
    yield make_row("date", (result.date for result in columns))


def _size(result: Result) -> str:
    if result.install_bytes is None or result.install_seconds is None:
        return ""
    return f"{result.install_bytes / 1e9:.1f} GB in {result.install_seconds:.0f} s"
