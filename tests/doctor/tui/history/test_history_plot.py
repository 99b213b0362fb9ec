"""Graphs as exact text: gaps are blank, zero is not, and the axis is readable."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator

import numpy as np
import pytest

from mgpu_doctor.live.history_measures import LOSS, OF_DEVICE, STEP, UTILIZATION, Measure, Unit
from mgpu_doctor.live.history_series import Columns
from mgpu_doctor.tui.screens.graph_plotting import bars, bounds, clock, nice

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


def text(columns: Columns, height: int, top: float = 1.0) -> list[str]:
    return [line.plain for line in bars(columns, 0.0, top, height)]


def test_one_line() -> None:
    assert text(level(0.0, 0.125, 0.5, 1.0, GAP, 0.75), 1) == ["▁▁▄█ ▆"]


def test_several_lines() -> None:
    assert text(level(0.0, 0.25, 0.5, 0.75, GAP, 1.0), 2) == [
        "   ▄ █",
        "▁▄██ █",
    ]


def test_the_band_is_full_up_to_the_least_and_light_up_to_the_most() -> None:
    band = Columns(np.array([0.25, GAP]), np.array([0.5, GAP]), np.array([1.0, GAP]))
    assert text(band, 4) == ["░ ", "░ ", "▓ ", "█ "]


def test_what_is_beyond_the_axis_is_cut_off() -> None:
    assert text(level(-1.0, 5.0), 1) == ["▁█"]


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
