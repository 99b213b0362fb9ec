"""The header of the screen: what it shows of the job, and what is dropped first if space is
scarce."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from mgpu_doctor.case.model import Gap, Unexamined
from mgpu_doctor.live.frame import Frame, Position
from mgpu_doctor.tui.panels import header
from mgpu_doctor.tui.panels.job_summary import describe_strategy
from mgpu_doctor.tui.view import View
from tests.support import diagnoses
from tests.support.frames import GOING, HEALTHY, STRAGGLER, UNKNOWN


def header_text(frame: Frame, width: int) -> str:
    made = [line.plain for line in header.header_lines(frame, width, View())]
    assert all(len(line) <= width for line in made)
    return "\n".join(made)


def test_what_matters_most_stays_longest() -> None:
    kept = [
        ("15.1 steps/s", 30),
        ("efficiency 66 %", 40),
        ("loss 2.35", 60),
        ("123,754 tokens/s", 70),
        ("483 samples/s", 80),
        ("(load balance 67 %, communication 99 %)", 130),
        ("66.2 ms per step", 150),
        ("probe 0.018 %", 180),
    ]
    for at, (_, width) in enumerate(kept):
        shown = header_text(STRAGGLER, width)
        assert all(words in shown for words, _ in kept[: at + 1]), (width, shown)
    assert kept[-1][0] not in header_text(STRAGGLER, 120)


def test_without_a_step_there_is_no_line_about_steps() -> None:
    assert len(header.header_lines(UNKNOWN, 80, View())) == 3
    assert len(header.header_lines(HEALTHY, 80, View())) == 4


def test_a_step_that_is_newer_than_the_diagnosis_is_shown() -> None:
    shown = header_text(structs.replace(HEALTHY, going=GOING._replace(step=4711)), 100)
    assert "step 4711" in shown


def test_a_job_that_stands_or_diverges_says_so_first() -> None:
    stands = header_text(structs.replace(HEALTHY, going=GOING._replace(idle=42.0)), 80)
    assert "no step for 42 s" in stands
    assert "steps/s" not in stands
    assert "loss is not a number" in header_text(
        structs.replace(HEALTHY, going=GOING._replace(loss=float("inf"))), 40
    )


def test_a_probe_that_switched_itself_off_is_reported_with_its_reason() -> None:
    off = Unexamined(
        "in-process probe", "it switched itself off on 1 ranks: disk full", "", Gap.PROCESS_PROBE
    )
    diagnosis = replace(diagnoses.healthy(), unexamined=(off,), efficiency_reason="no wait")
    frame = structs.replace(HEALTHY, diagnosis=diagnosis)
    assert "probe off" in header_text(frame, 80)
    assert "efficiency ?  (no wait)" in header_text(frame, 200)
    assert "(it switched itself off on 1 ranks: disk full)" in header_text(frame, 220)


@pytest.mark.parametrize("width", [60, 80, 100, 120])
def test_where_a_replay_stands_is_reported_on_narrow_screens_too(width: int) -> None:
    replay = Position(0.0, 125.0, 62.5, 1.0, paused=True)
    frame = structs.replace(HEALTHY, source="20261123-000610-torch_ddp-d5eb", replay=replay)
    first = header_text(frame, width).splitlines()[0]
    assert "replay paused " in first
    assert "of 2 min 5 s" in first


@pytest.mark.parametrize(
    ("word", "stages", "shown"),
    [
        ("ddp", (), "DDP"),
        ("fsdp+tensor", (), "FSDP × tensor parallel"),
        ("manual", (), "own collectives"),
        ("manual", ((0,), (1,)), "pipeline 2"),
        ("manual", ((0, 2), (1, 3)), "pipeline 2 × data 2"),
        ("ddp+pipeline", ((0, 2), (1, 3)), "pipeline 2 × DDP 2"),
        ("[red]\x1b[2J", (), "[red]"),
        (None, (), ""),
    ],
)
def test_strategy(word: str | None, stages: tuple[tuple[int, ...], ...], shown: str) -> None:
    made = diagnoses.healthy()
    job = replace(made.case.job, strategy=word)
    assert (
        describe_strategy(replace(made, case=replace(made.case, job=job), stages=stages)) == shown
    )
