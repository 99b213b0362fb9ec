"""The tracing process: what it answers, and that it can neither stall nor fool the doctor."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from mgpu_doctor.analysis.memory.settings import Settings
from mgpu_doctor.analysis.memory.stream import Freed, Kind, Phase, Stream, Taken
from mgpu_doctor.plan.wire import Answer, Refusal, WireError, read_answer, write_answer
from mgpu_doctor.plan.worker import Worker

STREAM = Stream(
    (
        Taken(0, 512, Kind.WEIGHTS, Phase.SETUP),
        Taken(3, 4096, Kind.ACTIVATIONS, Phase.FORWARD, "aten::mm"),
        Freed(3, Phase.BACKWARD),
    ),
    (1,),
    samples=2,
    parameters=128,
)


def test_an_answer_comes_back_as_it_went() -> None:
    answer = Answer(STREAM, flops=10**16, values_read=1)
    assert read_answer(write_answer(answer)) == answer
    refusal = Refusal("it branches", target=False, parameters=7)
    assert read_answer(write_answer(refusal)) == refusal


def _changed(**other: Any) -> str:
    return json.dumps({**json.loads(write_answer(Answer(STREAM))), **other})


@pytest.mark.parametrize(
    "line",
    [
        "",
        "[]",
        "null",
        "{}",
        "[" * 100_000,
        json.dumps({"refusal": 3}),
        _changed(events=[[0, 0]]),  # freed before it was taken
        _changed(events=[[0, 0, 1, 0, 0], [0, 1], [0, 1]]),  # freed twice
        _changed(events=[[0, 0, 1, 0, 0], [0, 0, 1, 0, 0]]),  # taken twice
        _changed(events=[[0, 0, -1, 0, 0]]),
        _changed(events=[[0, -1, 1, 0, 0]]),
        _changed(events=[[0, 0, 1 << 80, 0, 0]]),
        _changed(events=[[0, 0, 1.5, 0, 0]]),
        _changed(events=[[0, 99, 1, 0, 0]]),
        _changed(steps="ab"),
        _changed(flops=None),
    ],
)
def test_a_line_that_nobody_can_have_meant_is_refused(line: str) -> None:
    with pytest.raises(WireError):
        read_answer(line)


def _program(text: str) -> tuple[str, ...]:
    return (sys.executable, "-c", text)


@pytest.mark.parametrize(
    ("text", "limit", "said"),
    [
        ("import sys; sys.stdin.readline(); sys.stdin.readline()", 0.2, "more than 0 s"),
        ("print('[]')", 60, "something else than a trace"),
        ("import sys; sys.exit('no more memory')", 60, "exit code 1 (no more memory)"),
        ("import os; os.abort()", 60, "ended by SIGABRT"),
    ],
)
def test_a_process_that_does_not_answer_is_no_trouble(text: str, limit: float, said: str) -> None:
    with Worker("", limit, program=_program(text)) as worker:
        refusal = worker.trace(Settings(1))
    assert isinstance(refusal, Refusal)
    assert said in refusal.why
    assert not refusal.target


def test_a_real_one_answers_several_times() -> None:
    with Worker("mgpu_trainers.planned:cnn_nano", 120) as worker:
        small, large = (worker.trace(Settings(batch)) for batch in (2, 4))
        real = worker.trace(Settings(2), real=True)
    assert isinstance(small, Answer)
    assert isinstance(large, Answer)
    assert small.stream.parameters == large.stream.parameters > 90_000
    assert real == small
