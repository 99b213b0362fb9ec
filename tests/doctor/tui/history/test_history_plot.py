"""Graphs as exact text: gaps are blank, zero is not, and the axis is readable."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator

import numpy as np
import pytest

from mgpu_doctor.live.history_measures import LOSS, OF_DEVICE, STEP, UTILIZATION, Measure, Unit
from mgpu_doctor.live.history_spans import Columns, values
from mgpu_doctor.live.history_spans import columns as divide
from mgpu_doctor.tui.braille import DOTS, Canvas, area_rows, levels, nice
from mgpu_doctor.tui.screens.graph_overlay import chart, legend_width, marks
from mgpu_doctor.tui.screens.graph_plotting import Graph, bounds, clock
from mgpu_doctor.tui.screens.graph_selection import Kind, Lane, Subject

GAP = math.nan


@pytest.fixture(autouse=True)
def _in_utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def level(*mean: float) -> Columns:
    return Columns(*(np.array(mean),) * 3)


def area(height: int, *shares: float, above: tuple[float, ...] = ()) -> list[str]:
    canvas = Canvas(len(shares) // 2, height)
    canvas.area(levels(shares, DOTS * height), "", levels(above, DOTS * height))
    return [line.plain for line in canvas.lines()]


def line(height: int, *shares: float) -> list[str]:
    canvas = Canvas(len(shares) // 2, height)
    canvas.line(levels(shares, DOTS * height), "")
    return [line.plain for line in canvas.lines()]


def test_an_area_is_full_at_one_has_a_dot_at_zero_and_gaps_are_blank() -> None:
    assert area(2, 1.0, 1.0) == ["⣿", "⣿"]
    assert area(2, GAP, 0.0, GAP, GAP) == ["  ", "⢀ "]
    assert area(1, 0.5, 0.25) == ["⣄"]
    assert area(1, -1.0, 5.0) == ["⣸"]


def test_the_area_is_sparse_between_the_mean_and_the_most() -> None:
    assert area(2, 0.25, 0.25, above=(1.0, 0.25)) == ["⡂", "⣦"]


def test_a_line_is_connected_except_over_a_gap() -> None:
    assert line(1, 0.25, 1.0, 1.0, 0.25) == ["⡸⢱"]
    assert line(1, 1.0, GAP, GAP, 0.25) == ["⠁⢀"]
    assert line(2, 0.125, 1.0) == ["⢸", "⡸"]


def test_lines_are_told_apart_without_colour() -> None:
    spans = values(np.arange(100.0), np.arange(1.0, 101.0), np.full(100, 0.5))
    graphs = [
        Graph(
            Lane(Subject(Kind.GPU, number), UTILIZATION, f"GPU {number}"),
            spans,
            divide(spans, 0, 100, 120),
            (0.0, 1.0),
            (0.0, 100.0),
            12,
            "",
        )
        for number in (2, 3, 14)
    ]
    legend = legend_width([graph.lane.title for graph in graphs], 10, 81, 10)
    drawn = [line.plain for line in chart(graphs, 4, 10, legend)]
    assert set(drawn[2][12:72]) == {*"234", "⠉"}
    assert [line[72:].split() for line in drawn[:3]] == [
        [mark, "GPU", number, "50", "%"] for mark, number in (("2", "2"), ("3", "3"), ("4", "14"))
    ]
    assert marks([1, 11, 2]) == ["a", "b", "c"]


def test_shares_have_a_fixed_axis_and_watts_begin_at_zero() -> None:
    power = next(one for one in OF_DEVICE if one.unit is Unit.WATTS)
    assert bounds(UTILIZATION, [level(0.1, 0.2)]) == (0.0, 1.0)
    assert bounds(power, [level(550.0, GAP), level(640.0)]) == (0.0, 800.0)
    assert bounds(STEP, [level(0.0357)])[1] == pytest.approx(0.04)
    assert bounds(Measure("x", Unit.RATE), [level(5.5e9)]) == (0.0, 6 * 1024.0**3)
    low, high = bounds(LOSS, [level(2.0, 3.0)])
    assert low == pytest.approx(1.95)
    assert high == pytest.approx(3.05)
    assert bounds(STEP, [level(GAP)]) == (0.0, 1.0)


@pytest.mark.parametrize("value", [1e-9, 0.9, 1.0, 7.3, 999.0, 1e6, 3.2e12])
def test_nice_is_at_least_the_value_and_not_much_more(value: float) -> None:
    assert value <= nice(value) * (1 + 1e-12)
    assert nice(value) <= 1.4 * value


def test_nice_of_nothing() -> None:
    assert nice(0.0) == nice(math.nan) == 1.0


def test_clock_times_stand_under_their_columns() -> None:
    start = 1.79e9 - 1.79e9 % 3600
    assert clock(start, start + 60, 60, 4).plain == (
        "    ╵14:00:00      ╵14:00:15      ╵14:00:30      ╵14:00:45"
    ).ljust(64)
    assert clock(start, start + 6 * 3600, 40, 0).plain.split() == ["╵14:00", "╵16:00", "╵18:00"]


def test_rows_of_an_area_are_those_of_a_canvas() -> None:
    shares = [0.0, 1.0, GAP, 0.3, 0.55, 0.9, GAP, GAP, 0.01, 0.7]
    assert area_rows(levels(shares, DOTS * 3), 3) == area(3, *shares)
