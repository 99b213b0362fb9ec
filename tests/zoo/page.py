"""The table of docs/frameworks-seen.md."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tests.matrix.environments import ROOT
from tests.matrix.results import Result, Results, make_cell, make_note, make_row
from tests.matrix.verdicts import Outcome, Verdict
from tests.zoo.catalogue import CATALOGUE, Script
from tests.zoo.ways import Way

RESULTS = ROOT / "tests" / "recorded" / "zoo.json"
PAGE = ROOT / "docs" / "frameworks-seen.md"
ORDER = {script.name: [way.value for way in Way] for script in CATALOGUE}
"""Scripts and their ways, as the results are kept."""
HEADING = "## Results\n"
NOT_RUN = Verdict(Outcome.NOT_RUN)


def insert_table(page: str, results: Results) -> str:
    """The page with the results under their heading; the rest of the page is written by hand."""
    before, _, after = page.partition(HEADING)
    _, next_heading, rest = after.partition("\n## ")
    return f"{before}{HEADING}\n{render(results)}{next_heading}{rest}"


def render(results: Results) -> str:
    """The table and its notes; scripts that were not run are listed."""
    return "\n".join(_render_lines(results)) + "\n"


def _render_lines(results: Results) -> Iterator[str]:
    notes: list[str] = []
    shown = [script for script in CATALOGUE if script.name in results]
    titles = ["versions", *(way.value for way in Way), "cost of a step", "date"]
    yield make_row("script of `tests/zoo/scripts`", titles)
    yield make_row("---", ("---" for _ in titles))
    for script in shown:
        yield make_row(
            f"`{script.path.name}`: {script.style}", _cells(script, results[script.name], notes)
        )
    yield ""
    yield from (f"{number}. {note}" for number, note in enumerate(notes, 1))
    if missed := [f"`{script.name}`" for script in CATALOGUE if script not in shown]:
        yield f"{chr(10) if notes else ''}Not run so far: {', '.join(missed)}."


def _cells(script: Script, result: Result, notes: list[str]) -> Sequence[str]:
    if result.reason is not None:
        return [f"not tried{make_note(result.reason, notes)}", *("" for _ in Way), "", result.date]
    verdicts = [result.verdicts.get(way.value, NOT_RUN) for way in Way]
    versions = [
        f"{name} {result.versions[name]}" for name in script.shown if name in result.versions
    ]
    cells = [make_cell(verdict, notes) for verdict in verdicts]
    return [", ".join(versions), *cells, result.overhead or "", result.date]
