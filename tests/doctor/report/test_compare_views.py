"""A comparison in every view: valid by its schema, within the width, safe from untrusted text."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from rich.cells import cell_len

from mgpu_doctor.analysis.comparing.compared_run import Shared
from mgpu_doctor.analysis.comparing.comparison import Comparison, LeftOut, compared
from mgpu_doctor.report import (
    comparison_html,
    comparison_markdown,
    comparison_terminal,
    comparison_text,
)
from mgpu_doctor.report import comparison_json as as_json
from mgpu_doctor.report.verdict import Tone
from tests.support.compared_runs import run, steady, step_times
from tests.support.diagnoses import HOSTILE

SCHEMA = json.loads(
    (Path(__file__).parents[3] / "docs" / "compare.schema.json").read_text(encoding="utf-8")
)


@cache
def counts() -> Comparison:
    """1, 2 and 4 ranks, of which 4 share two cores."""
    runs = [
        run("one", step_times(200, 1), ranks=1, samples=32),
        run("two", 1.15 * step_times(200, 2), ranks=2, samples=64, wait=0.004),
        run("four", 2.4 * step_times(200, 3), ranks=4, samples=128, wait=0.01, communication=0.01),
    ]
    crowded = replace(runs[2], shared=(Shared("node", 4, 4, 2.0),))
    return compared([*runs[:2], crowded])


@cache
def strategies() -> Comparison:
    names = ("ddp", "fsdp")
    settings = [{"framework": "torch", "strategy": name, "lr": "0.1"} for name in names]
    series = [step_times(200, 1), 1.2 * step_times(200, 2)]
    return compared(
        [
            run(name, one, ranks=2, settings=chosen)
            for name, one, chosen in zip(names, series, settings, strict=True)
        ]
    )


@pytest.mark.parametrize(
    ("settings", "differs"),
    [
        ([{"model": "cnn"}, {"model": "mlp"}], ("model",)),
        ([{"model": "cnn"}, {}], ()),
        ([{"program": "a.py"}, {"program": "b.py"}], ("program",)),
        ([{"program": "mgpu_trainers.pytorch.ddp"}, {"program": "mgpu_trainers.pytorch.tp"}], ()),
    ],
)
def test_different_work_is_reported_first(
    settings: list[dict[str, str]], differs: tuple[str, ...]
) -> None:
    series = [step_times(200, 1), 2 * step_times(200, 2)]
    names = ("first", "second")
    comparison = compared(
        [
            run(name, one, settings=chosen)
            for name, one, chosen in zip(names, series, settings, strict=True)
        ]
    )
    assert comparison.work_differs == differs
    heads = [column.head for column in comparison_text.columns(comparison)]
    headline = comparison_text.headline(comparison)
    is_compared = "model" not in differs
    assert ("speed-up" in heads) is is_compared
    assert (headline.tone is Tone.WARNING) is is_compared
    assert ("per sample" in headline.sentence) is is_compared


@cache
def unknown() -> Comparison:
    """Little is known of anything, and names are made to harm."""
    bare = run(HOSTILE, steady(0.04, 8), samples=None, settings={HOSTILE: HOSTILE})
    bare = replace(bare, memory=None, memory_reason=HOSTILE, phases={})
    bare = replace(bare, in_collectives=None, in_collectives_reason=HOSTILE)
    other = run("other", steady(0.05, 8), ranks=2, samples=None)
    return compared([bare, other], [LeftOut(HOSTILE, HOSTILE)])


ALL = {"counts": counts, "strategies": strategies, "unknown": unknown}


def test_ranks_that_were_fed_alike_are_reported_as_their_samples_count_once() -> None:
    runs = [run(name, step_times(200, seed), ranks=2, samples=32) for seed, name in enumerate("ab")]
    told = list(comparison_text.notes(compared([runs[0], replace(runs[1], echoing=1)])))
    sentence = "1 of 2 ranks sees the same batches as another one: such samples count once"
    assert [note for note in told if "samples" in note] == [f"B: {sentence}"]


def test_the_schema_is_one() -> None:
    Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("name", ALL)
def test_the_json_is_valid(name: str) -> None:
    printed = as_json.render(ALL[name]())
    document = json.loads(printed)
    assert printed.isascii()
    assert [error.message for error in Draft202012Validator(SCHEMA).iter_errors(document)] == []


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("width", [40, 80, 120])
def test_no_line_is_too_wide_and_nothing_escapes(name: str, width: int) -> None:
    printed = comparison_terminal.render_comparison(ALL[name](), width=width, colour=False)
    assert max(map(cell_len, printed.splitlines())) <= width
    assert "\x1b" not in printed
    assert "\x07" not in printed
    plain = comparison_terminal.render_comparison(
        ALL[name](), width=width, colour=False, unicode=False
    )
    assert plain.isascii()


def test_the_table_of_rank_counts_fits_80_columns() -> None:
    printed = comparison_terminal.render_comparison(counts(), width=80, colour=False)
    head = next(line for line in printed.splitlines() if "samples/s" in line)
    for name in ("ranks", "mean step", "speed-up", "of ideal"):
        assert name in head
    assert "share 2 cores" in " ".join(printed.split())
    assert "8 ranks: a step of" in " ".join(printed.split())


def test_the_first_line_names_the_one_to_take_and_why() -> None:
    first = comparison_terminal.render_comparison(counts(), width=80, colour=False).splitlines()[0]
    assert first.startswith("✓ B (2 ranks) does 1.7")


def test_of_two_runs_the_first_line_is_their_difference() -> None:
    said = comparison_text.headline(strategies())
    assert said.sentence.startswith("B is slower than A: ")
    assert "% more time per sample (" in said.sentence
    equal = compared([run("a", step_times(200, 1)), run("b", step_times(200, 1))])
    assert comparison_text.headline(equal).sentence.startswith(
        "no difference shown between A and B"
    )


def test_where_scaling_is_lost_is_reported() -> None:
    joined = " ".join(comparison_text.costs(counts()))
    assert "C (4 ranks) reaches 4" in joined
    assert "own work" in joined


def test_markup_of_others_is_text() -> None:
    page = comparison_html.render_comparison_html(unknown())
    assert "<script>alert" not in page
    assert "&lt;script&gt;" in page
    ticket = comparison_markdown.render_comparison_markdown(unknown())
    assert "<script>" not in ticket
    assert "@root" not in ticket


@pytest.mark.parametrize("name", ALL)
def test_all_views_tell_every_note(name: str) -> None:
    notes = [note for note in comparison_text.notes(ALL[name]()) if "alert" not in note]
    page = comparison_html.render_comparison_html(ALL[name]())
    for note in notes:
        assert note.split(";", maxsplit=1)[0] in page
    assert len(notes) > 0


def test_letters_go_on_after_z() -> None:
    assert [comparison_text.letter(place) for place in (0, 25, 26, 63)] == ["A", "Z", "AA", "BL"]


def test_where_no_run_is_shown_to_be_better_none_is_praised() -> None:
    series = [step_times(200, seed) for seed in (1, 2, 3)]
    alike = compared([run(str(place), one) for place, one in enumerate(series)])
    assert (
        comparison_text.headline(alike).sentence
        == "no run is shown to do more samples a second than A"
    )


def test_what_holds_for_several_runs_is_reported_once() -> None:
    runs = [
        replace(run(name, step_times(200, 1)), shared=(Shared("node", 4, 4, 2.0),))
        for name in ("one", "other")
    ]
    (said,) = (note for note in comparison_text.notes(compared(runs)) if "share 2 cores" in note)
    assert said.startswith("A, B: 4 ranks with 4 threads share 2 cores: their step times show")
