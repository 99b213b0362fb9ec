"""The heatmap of ranks by steps: its rows are those of the table of ranks."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from mgpu_doctor.findings import Severity
from mgpu_doctor.live.step_heatmap import Heatmap
from mgpu_doctor.tui.app import TopApp
from mgpu_doctor.tui.panels import heatmap
from mgpu_doctor.tui.panels.rank_table import rank_lines
from mgpu_doctor.tui.panels.table_cells import Rows
from mgpu_doctor.tui.view import Order, RankKey, View
from tests.support import diagnoses
from tests.support.frames import STRAGGLER
from tests.support.screens import Still, screen_text, shown, until


def labels(view: View, width: int = 80) -> list[str]:
    _, *rows = heatmap.heatmap_lines(STRAGGLER, width, view)
    return [row.plain.split()[0] for row in rows]


def test_it_is_sorted_like_the_ranks() -> None:
    assert labels(View()) == ["0", "1", "2", "3"]
    assert labels(View(order=Order.OWN)) == ["2", "0", "1", "3"]


def test_a_rank_that_was_not_compared_has_an_empty_row() -> None:
    known = STRAGGLER.heat
    assert isinstance(known, Heatmap)
    less = structs.replace(STRAGGLER, heat=Heatmap((0, 2, 3), known.steps, known.excess[[0, 2, 3]]))
    assert [row.plain.split()[0] for row in heatmap.heatmap_lines(less, 80, View())][1:] == list(
        "0123"
    )
    assert not heatmap.heatmap_lines(less, 80, View())[2].plain[5:].strip()


def test_the_selected_rank_is_brought_into_view_else_the_blamed_one() -> None:
    for view, row in (
        (View(), 2),
        (View(rank=RankKey(3, "node-a")), 3),
        (View(rank=RankKey(9, "")), 2),
    ):
        lines = heatmap.heatmap_lines(STRAGGLER, 80, view)
        assert isinstance(lines, Rows)
        assert lines.marked == row


def test_the_culprit_of_the_selected_finding_is_brought_into_view() -> None:
    assert STRAGGLER.diagnosis is not None
    findings = (
        replace(diagnoses.slow_input(), culprits=()),
        diagnoses.LOW_COVERAGE,
        diagnoses.slow_input(1),
        diagnoses.slow_input(3),
        replace(diagnoses.slow_input(0), severity=Severity.INFO),
    )
    diagnosis = replace(STRAGGLER.diagnosis, findings=findings)
    several = structs.replace(STRAGGLER, diagnosis=diagnosis)
    for selected, rank in enumerate((1, 1, 1, 3, 1)):
        view = View(finding=selected)
        heat, table = heatmap.heatmap_lines(several, 80, view), rank_lines(several, 80, view)
        assert isinstance(heat, Rows)
        assert isinstance(table, Rows)
        assert heat.marked == table.marked == rank
        assert [row.plain[0] for row in table[len(table.head) :]].index("▸") == rank


@pytest.mark.parametrize("width", [40, 79, 120])
def test_the_legend_is_whole_or_left_out(width: int) -> None:
    head = heatmap.heatmap_lines(STRAGGLER, width, View())[0].plain
    assert len(head) <= width
    assert ("5%" in head) == head.endswith("█ more") == (width > 40)


@pytest.mark.parametrize("width", [20, 60, 300])
def test_why_there_is_no_map_is_reported_to_its_end(width: int) -> None:
    why = "steps are not seen: this job was not started under observation (d: look at it)"
    lines = [
        line.plain
        for line in heatmap.heatmap_lines(structs.replace(STRAGGLER, heat=why), width, View())
    ]
    assert max(map(len, lines)) <= width
    assert " ".join(lines) == f"no map of ranks by steps: {why}"


async def test_beside_the_ranks_each_rank_is_on_one_line() -> None:
    app = TopApp(Still(STRAGGLER), interval=3600)
    async with app.run_test(size=(200, 60)) as pilot:
        await shown(pilot)
        await until(pilot, lambda: _together(screen_text(app)), "both on one line")
        await pilot.resize_terminal(80, 40)
        await until(pilot, lambda: _below(screen_text(app)), "the map right below its title")


def _below(screen: str) -> bool:
    lines = screen.splitlines()
    title = next((place for place, line in enumerate(lines) if line.startswith("─Steps")), -2)
    return "5%" in lines[title + 1]


def _together(screen: str) -> bool:
    line = next((line for line in screen.splitlines() if line.startswith("▸    2 ")), "")
    return "  2 ▅" in line
