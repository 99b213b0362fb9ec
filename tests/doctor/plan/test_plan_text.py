"""How a plan is shown: within the width, in plain letters, the bar in proportion."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mgpu_doctor.analysis.memory.device_memory import Gpu
from mgpu_doctor.analysis.memory.fix_search import advise
from mgpu_doctor.analysis.memory.memory_plan import Plan, Settings, Strategy
from mgpu_doctor.analysis.memory.prediction import predict
from mgpu_doctor.analysis.memory.traced_streams import Traces
from mgpu_doctor.plan.plan_json import render as render_json
from mgpu_doctor.plan.plan_text import cells, render
from mgpu_doctor.plan.planned import Planned
from mgpu_doctor.plan.step_tracer import Method, TracedSteps, estimate_states
from mgpu_doctor.plan.subject import Subject

ROOT = Path(__file__).parents[3]
PARAMETERS = 10**9
SETTINGS = Settings(8)
ASKED = Plan(SETTINGS, Strategy.DDP, ranks=8)


def _planned(capacity: int, method: Method = Method.FAKE, name: str = "mine.py:plan") -> Planned:
    traces = Traces({SETTINGS: estimate_states(PARAMETERS, SETTINGS)})
    device = Gpu("GPU", capacity, "as given")
    prediction, advice = predict(ASKED, traces, device), advise(ASKED, traces, device)
    assert prediction is not None
    followed = TracedSteps(traces, method, ("it has a reason",), PARAMETERS)
    return Planned(Subject(name, name), device, prediction, followed, 0, advice, ("a note",))


@pytest.mark.parametrize("width", [40, 80, 100])
def test_no_line_is_wider_than_the_terminal_but_what_cannot_be_broken(width: int) -> None:
    lines = render(_planned(16 << 30), width=width, colour=False, unicode=False).splitlines()
    assert [line for line in lines if len(line) > width and len(line.split()) > 1] == []
    assert all(line.isascii() for line in lines)


def test_what_will_not_fit_is_reported_with_fixes_and_their_set() -> None:
    printed = render(_planned(16 << 30), width=80, colour=False, unicode=True)
    assert printed.splitlines()[1].startswith("✗ will not fit GPU: it needs ")
    assert "not even 1 fits" in printed
    assert "ZeRO-1" in printed
    assert "mgpu-doctor treat --only optimizer-zero1 -- COMMAND" in " ".join(printed.split())
    assert "\x1b" not in printed


def test_of_a_lower_bound_it_is_reported_that_it_is_one() -> None:
    printed = render(_planned(16 << 30, Method.FORMULA), width=80, colour=False, unicode=True)
    assert "it needs at least" in printed
    assert "largest batch" not in printed
    printed = render(_planned(1 << 40, Method.FORMULA), width=80, colour=False, unicode=True)
    assert "whether it fits GPU is not known" in printed


def test_colours_change_nothing_else_and_names_cannot_bring_any() -> None:
    planned = _planned(1 << 40, name="a\x1b[31mb.py")
    plain, coloured = (
        render(planned, width=80, colour=colour, unicode=True) for colour in (False, True)
    )
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == plain
    assert plain.startswith("ab.py: batch 8, fp32, adamw, ddp on 8 ranks\n✓ fits GPU")


def test_settings_that_are_not_usual_are_named() -> None:
    planned = _planned(1 << 40)
    asked = replace(ASKED, settings=replace(SETTINGS, accumulate=4))
    planned = replace(planned, prediction=replace(planned.prediction, plan=asked))
    assert "4 micro-batches per step" in render(planned, width=80, colour=False, unicode=True)


@given(st.lists(st.integers(1, 1 << 40), min_size=1, max_size=7), st.integers(40, 100))
def test_a_bar_is_as_wide_as_asked_and_shows_every_part(sizes: list[int], width: int) -> None:
    drawn = cells(sizes, width)
    assert sum(drawn) == width
    assert min(drawn) >= 1
    for size, cell in zip(sizes, drawn, strict=True):
        assert abs(cell - size * width / sum(sizes)) <= len(sizes)


def test_the_json_of_any_plan_keeps_its_schema() -> None:
    schema = json.loads((ROOT / "docs" / "plan.schema.json").read_text(encoding="utf-8"))
    for planned in (_planned(16 << 30), _planned(1 << 40), _planned(16 << 30, Method.FORMULA)):
        written = json.loads(render_json(planned))
        jsonschema.validate(written, schema)
        assert sum(written["prediction"]["peak_by_kind"].values()) == planned.prediction.allocated
