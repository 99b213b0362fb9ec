"""The self-test of device timing, on right and on wrong measurements."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from click.testing import CliRunner
from mgpu_probes.inprocess.layout import BACKWARD, FORWARD, OPTIMIZER, PHASES, WAIT

from mgpu_doctor.check import device_selftest, device_workload
from mgpu_doctor.check.check_result import Level
from mgpu_doctor.check.device_selftest import CannotTestError, WorkloadRun, judge
from mgpu_doctor.check.kernel_spans import TracedSteps, read_trace
from mgpu_doctor.cli import app

MS = 1e-3
LENGTHS = {"forward": 3 * MS, "backward": 6 * MS, "optimizer": 1 * MS}
EXTRA = 4 * MS


def steps() -> list[dict[str, Any]]:
    made = []
    for kind in device_workload.plan():
        step: dict[str, Any] = {"kind": kind, "phases": list(LENGTHS.values())}
        if kind in (device_workload.SLOW_FORWARD, device_workload.SLOW_STREAM):
            step["extra"] = EXTRA
        if kind == device_workload.GATE:
            step["ran_ahead"] = True
        made.append(step)
    return made


def phases_of(kind: str) -> list[float]:
    phases = [0.0] * len(PHASES)
    phases[FORWARD], phases[BACKWARD], phases[OPTIMIZER] = LENGTHS.values()
    phases[WAIT] = EXTRA if kind == device_workload.SLOW_STREAM else float("nan")
    if kind == device_workload.SLOW_FORWARD:
        phases[FORWARD] += EXTRA
    return phases


def trace(numbers: Sequence[int], synchronizations: int = 0) -> dict[str, Any]:
    """As Kineto writes it, in µs: the host queues a step in 30 µs, the device takes 10 ms for it.
    Kernels of a backward pass are launched by a thread of their own."""
    events: list[dict[str, Any]] = [{"ph": "M", "name": "process_name"}]
    correlation = 0
    for number in numbers:
        host, device = number * 100.0, 1000.0 + number * 10_000.0
        for thread, (phase, seconds) in enumerate(LENGTHS.items()):
            name = f"mgpu-doctor {number} {phase}"
            span = {"ph": "X", "ts": host, "dur": 9.0}
            events.append(span | {"cat": "user_annotation", "name": name, "tid": 1})
            for half in (0, 1):
                correlation += 1
                link = {"args": {"correlation": correlation}, "ph": "X", "dur": 1.0}
                launch = {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "tid": thread}
                events.append(link | launch | {"ts": host + 1 + half})
                ts, dur = device + half * seconds * 5e5, seconds * 5e5 - 2
                events.append(link | {"cat": "kernel", "name": "gemm", "ts": ts, "dur": dur})
            host, device = host + 10, device + seconds * 1e6
        for call in ["cudaStreamSynchronize"] * synchronizations + ["cudaMemcpyAsync"]:
            correlation += 1
            at = {"ts": number * 100.0 + 5, "dur": 1.0, "args": {"correlation": correlation}}
            events.append(at | {"ph": "X", "cat": "cuda_runtime", "name": call})
    return {"traceEvents": events}


def run(phases: Mapping[int, Sequence[float]] | None = None, traced: Any = None) -> WorkloadRun:
    report = {
        "device": {"kind": "cuda", "name": "GPU", "torch": "2.13", "runtime": "12.8"},
        "events": {"record": 1e-6, "query": 1e-6, "elapsed_time": 1e-6},
        "steps": steps(),
        "untraced": None,
    }
    return WorkloadRun(report, TracedSteps() if traced is None else traced, phases or {})


def probed() -> WorkloadRun:
    kinds = [step["kind"] for step in steps()]
    first = kinds.index(device_workload.TRACED)
    traced = read_trace(trace(range(first, first + device_workload.PROFILED)))
    return run({number: phases_of(kind) for number, kind in enumerate(kinds)}, traced)


BARE = run(traced=TracedSteps({}, 0))


def levels(bare: WorkloadRun, with_probe: WorkloadRun) -> dict[str, Level]:
    return {result.check.id: result.result.level for result in judge(bare, with_probe).results}


def longer(run: WorkloadRun, phase: int, seconds: float, kind: str | None = None) -> WorkloadRun:
    """The run as if the probe had measured a phase wrongly, in all steps or in those of a kind."""
    wrong: dict[int, Sequence[float]] = {}
    for number, phases in run.phases.items():
        is_wrong = kind in (None, run.steps[number]["kind"])
        wrong[number] = [
            each + seconds * (at == phase and is_wrong) for at, each in enumerate(phases)
        ]
    return replace(run, phases=wrong)


def test_what_is_right_passes() -> None:
    found = levels(BARE, probed())
    assert set(found.values()) == {Level.PASS, Level.NOTE}
    assert [name for name, level in found.items() if level is Level.NOTE] == ["gpu-device"]


@pytest.mark.parametrize("phase", [FORWARD, BACKWARD, OPTIMIZER])
def test_a_phase_that_is_timed_wrongly_fails(phase: int) -> None:
    for seconds, level in ((0.03 * MS, Level.PASS), (0.3 * MS, Level.FAIL)):
        found = levels(BARE, longer(probed(), phase, seconds))
        assert (found["gpu-phases"], found["gpu-kernels"]) == (level, level)


@pytest.mark.parametrize(
    ("kind", "phase", "test"),
    [
        (device_workload.SLOW_FORWARD, FORWARD, "gpu-slow-forward"),
        (device_workload.SLOW_STREAM, WAIT, "gpu-slow-stream"),
    ],
)
def test_planted_work_must_show_in_its_phase(kind: str, phase: int, test: str) -> None:
    unseen = longer(probed(), phase, -EXTRA, kind)
    elsewhere = longer(unseen, BACKWARD, EXTRA, kind)
    for wrong in (unseen, elsewhere):
        assert [n for n, level in levels(BARE, wrong).items() if level is Level.FAIL] == [test]


def test_a_host_that_waits_for_the_device_fails() -> None:
    waiting = probed()
    for step in waiting.steps:
        if "ran_ahead" in step:
            step["ran_ahead"] = False  # type: ignore[index]
    assert levels(BARE, waiting)["gpu-run-ahead"] is Level.FAIL
    both = run(traced=BARE.trace)
    both.report["steps"][:] = waiting.steps
    assert levels(both, waiting)["gpu-run-ahead"] is Level.NOTE


def test_an_added_synchronization_fails() -> None:
    first = next(iter(probed().trace.phases))
    added = replace(probed(), trace=read_trace(trace(range(first, first + 8), 1)))
    assert added.trace.waits == 8
    assert levels(BARE, added)["gpu-synchronizations"] is Level.FAIL
    assert levels(run(traced=added.trace), added)["gpu-synchronizations"] is Level.PASS


def test_a_device_that_is_not_timed_fails() -> None:
    untimed = replace(probed(), phases={}, untimed="CUDA_DEVICE_MAX_CONNECTIONS is 1")
    found = judge(BARE, untimed)
    assert [result.check.id for result in found.results if result.is_improvable] == [
        "gpu-timed-steps"
    ]


def test_no_gpu_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(*_: object) -> None:
        raise CannotTestError("PyTorch finds no GPU")

    monkeypatch.setattr(device_selftest, "run_selftest", nothing)
    done = CliRunner().invoke(app, ["check", "--gpu"])
    assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (3, "", 1)


def test_exit_code_and_json(monkeypatch: pytest.MonkeyPatch) -> None:
    for with_probe, code in ((probed(), 0), (longer(probed(), FORWARD, MS), 1)):
        test = judge(BARE, with_probe)
        monkeypatch.setattr(device_selftest, "run_selftest", lambda _, test=test: test)
        done = CliRunner().invoke(app, ["check", "--gpu", "--json"])
        document = json.loads(done.stdout)
        assert done.exit_code == code
        assert document["device"]["kind"] == "cuda"
        assert document["measured"]["timed_steps"] == len(with_probe.phases)
