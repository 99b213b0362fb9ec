"""The tree of stacks fits its terminal, and nothing important is left out."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import jsonschema
from hypothesis import given
from hypothesis import strategies as st

from mgpu_doctor.diagnosis import diagnose
from mgpu_doctor.findings import Branch
from mgpu_doctor.report import html, markdown, terminal
from mgpu_doctor.report.diagnosis_json import render as render_json
from mgpu_doctor.report.redaction.redact import redact_diagnosis
from mgpu_doctor.report.stack_tree import tree_lines
from tests.support import job_snapshots
from tests.support.diagnoses import HOSTILE, healthy
from tests.support.job_snapshots import LOCKED, snapshot_series


def branch(
    depth: int, ranks: tuple[int, ...], calls: tuple[str, ...] = ("f x.py:1",), **more: object
) -> Branch:
    made = Branch(depth, ranks, len(ranks), calls, None, None, False)
    return replace(made, **more)  # type: ignore[arg-type]  # fields of Branch


def test_common_calls_once_then_who_parts_where() -> None:
    tree = diagnose(job_snapshots.case(snapshot_series({1: LOCKED}).snapshots())).tree
    assert [line.text for line in tree_lines(tree, 100)] == [
        "4 ranks  <module> train.py:90 → main train.py:81 → train train.py:60",
        "├─ 0, 2-3  exchange train.py:65 → all_reduce distributed_c10d.py:3252  (all_reduce)",
        "└▸ 1  stand train.py:70 → take util.py:31  (lock)",
    ]
    assert [line.culprit for line in tree_lines(tree, 100)] == [False, False, True]


def test_of_many_calls_the_innermost_are_shown() -> None:
    calls = tuple(f"function_{at} train.py:{at}" for at in range(40))
    (line,) = tree_lines([branch(0, (0,), calls)], 60)
    assert line.text.endswith("function_39 train.py:39")
    assert "… 39 more → " in line.text
    assert len(line.text) <= 60


def test_of_many_branches_the_culprits_is_kept() -> None:
    tree = [branch(0, tuple(range(30))), *(branch(1, (number,)) for number in range(29))]
    tree.append(branch(1, (29,), culprit=True))
    lines = tree_lines(tree, 80, height=8)
    assert len(lines) == 8
    assert lines[0].text.startswith("30 ranks")
    assert any(line.culprit for line in lines)
    assert lines[-1].text == "… 24 more branches"


def test_a_process_of_unknown_rank_is_counted() -> None:
    (line,) = tree_lines([branch(0, (), processes=2)], 80)
    assert line.text.startswith("2 processes")


@given(
    st.lists(
        st.tuples(
            st.integers(0, 4),
            st.sets(st.integers(0, 9999), max_size=20),
            st.lists(st.text(max_size=60), max_size=6),
            st.booleans(),
        ),
        max_size=40,
    ),
    st.integers(30, 160),
    st.integers(1, 20),
)
def test_it_always_fits(
    shapes: list[tuple[int, set[int], list[str], bool]], width: int, height: int
) -> None:
    tree = [
        branch(depth, tuple(sorted(ranks)), tuple(calls), culprit=wrong, operation=HOSTILE)
        for depth, ranks, calls, wrong in shapes
    ]
    lines = tree_lines(tree, width, height)
    assert len(lines) <= height
    assert all(len(line.text) <= width and "\n" not in line.text for line in lines)


def test_every_report_shows_it_and_none_is_broken_by_names() -> None:
    tree = (
        branch(0, (0, 1), (HOSTILE, "main /home/someone/project/train.py:1")),
        branch(1, (1,), (f"`````{HOSTILE}",), culprit=True, doing="lock"),
    )
    made = replace(healthy(), tree=tree, findings=())
    assert "Where the ranks were" in html.render(made)
    assert "<script>alert" not in html.render(made)
    assert "Stacks" in markdown.render(made)
    assert "/home/someone" not in str(redact_diagnosis(made).tree)


def test_its_json_keeps_the_schema() -> None:
    schema = Path(__file__).parents[3] / "docs" / "diagnosis.schema.json"
    document = json.loads(
        render_json(diagnose(job_snapshots.case(snapshot_series({1: LOCKED}).snapshots())))
    )
    jsonschema.validate(document, json.loads(schema.read_text(encoding="utf-8")))
    assert [stack["ranks"] for stack in document["stacks"]] == [[0, 1, 2, 3], [0, 2, 3], [1]]


def test_a_terminal_shows_the_tree_of_a_job_that_stands() -> None:
    diagnosis = diagnose(job_snapshots.case(snapshot_series({1: LOCKED}).snapshots()))
    shown = terminal.render(diagnosis, width=80, colour=False)
    assert "└▸ 1  stand train.py:70 → take util.py:31  (lock)" in shown
    assert all(len(line) <= 80 for line in shown.splitlines())
    plain = terminal.render(diagnosis, width=80, colour=False, unicode=False)
    assert plain.isascii()
