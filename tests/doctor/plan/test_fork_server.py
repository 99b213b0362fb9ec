"""The tracing process: its answers; it can neither block nor deceive the doctor."""

from __future__ import annotations

import json
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest

from mgpu_doctor.analysis.memory.memory_plan import Settings
from mgpu_doctor.analysis.memory.stream import Allocated, Freed, Kind, Phase, Stream
from mgpu_doctor.plan.fork_server import ForkServer, Worker
from mgpu_doctor.plan.tracing_protocol import Answer, Refusal, WireError, read_answer, write_answer
from tests.support.jobs import gone, until

STREAM = Stream(
    (
        Allocated(0, 512, Kind.WEIGHTS, Phase.SETUP),
        Allocated(3, 4096, Kind.ACTIVATIONS, Phase.FORWARD, "aten::mm"),
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
    """A fork server whose children do that."""
    imports = "from mgpu_doctor.plan.tracing.tracing_server import serve_children\n"
    return (sys.executable, "-c", f"{imports}if asked := serve_children(): {text}")


@pytest.mark.parametrize(
    ("text", "limit", "message"),
    [
        ("asked.recv(9999), asked.recv(9999)", 1, "more than 1 s"),
        ("asked.recv(9999), asked.sendall(b'[]\\n')", 60, "did not answer with a trace"),
        ("raise SystemExit('no more memory')", 60, "exit code 1 (no more memory)"),
        ("import os; os.abort()", 60, "ended by SIGABRT"),
        ("import subprocess; subprocess.run(['sh', '-c', 'kill $PPID'])", 60, "ended by SIGTERM"),
    ],
)
@pytest.mark.slow
def test_a_process_that_does_not_answer_is_no_trouble(
    text: str, limit: float, message: str
) -> None:
    server = ForkServer("", program=_program(text))
    with closing(server), closing(Worker(server, limit)) as worker:
        refusals = [worker.trace(Settings(1)) for _ in range(2)]
    for refusal in refusals:
        assert isinstance(refusal, Refusal)
        assert message in refusal.why
        assert not refusal.target


@pytest.mark.parametrize(
    ("text", "limit", "message"),
    [
        ("import sys; sys.stdin.readline()", 1, "more than 1 s"),
        ("import sys; sys.exit('no torch to be had')", 60, "exit code 1 (no torch to be had)"),
        ("import os; os.kill(os.getpid(), 9)", 60, "ended by SIGKILL"),
    ],
)
@pytest.mark.slow
def test_a_server_that_never_has_children_is_no_trouble(
    text: str, limit: float, message: str
) -> None:
    with closing(ForkServer("", program=(sys.executable, "-c", text))) as server:
        refusal = Worker(server, limit).trace(Settings(1))
    assert isinstance(refusal, Refusal)
    assert message in refusal.why


def test_a_child_can_be_ended_as_soon_as_it_is_known() -> None:
    """It hears as one of a session of its own, which it may come to late."""
    late = "import os, time; begin = os.setsid; os.setsid = lambda: time.sleep(0.2) or begin()\n"
    *python, text = _program("asked.recv(9999)")
    with closing(ForkServer("", program=(*python, late + text))) as server:
        child = server.fork(time.monotonic() + 60)
        assert "ended by SIGKILL" in server.describe_end(child, time.monotonic() + 60)
        child.close()


def test_what_a_child_starts_ends_with_it_and_other_children_stay(tmp_path: Path) -> None:
    starts = f"import os; os.system(f'sleep 600 & echo $! > {tmp_path}/{{os.getpid()}}')"
    with closing(ForkServer("", program=_program(f"{starts}; asked.recv(9999)"))) as server:
        first, second = (server.fork(time.monotonic() + 60) for _ in range(2))
        told = [tmp_path / str(child.number) for child in (first, second)]
        until(lambda: all(one.is_file() and one.read_text().endswith("\n") for one in told))
        first.kill()
        assert "ended by SIGKILL" in server.describe_end(first, time.monotonic() + 60)
        assert psutil.Process(second.number).status() != psutil.STATUS_ZOMBIE
        second.kill()
        server.describe_end(second, time.monotonic() + 60)
        until(lambda: all(gone(int(one.read_text())) for one in told))
        for child in (first, second):
            child.close()


@pytest.mark.slow
def test_a_real_one_answers_several_times() -> None:
    server = ForkServer("mgpu_trainers.pytorch.torch_plan_models:cnn_nano")
    with closing(server), closing(Worker(server, 120)) as worker:
        small, large = (worker.trace(Settings(batch)) for batch in (2, 4))
        real = worker.trace(Settings(2), real=True)
    assert isinstance(small, Answer)
    assert isinstance(large, Answer)
    assert small.stream.parameters == large.stream.parameters > 90_000
    assert real == small
