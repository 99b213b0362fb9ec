"""Tests whether steps are timed right on this machine's GPU, without disturbing the training.

A short training runs twice in a process of its own (`device_workload`): bare, and with the probe as
under `mgpu-doctor run`. What the probe recorded is compared with what the training measured itself
and with the kernels in a trace of torch's profiler.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isnan
from pathlib import Path
from statistics import median
from typing import Any

from mgpu_probes.inprocess.layout import BOX_SUFFIX, PHASES, WAIT

from mgpu_doctor.check import device_workload
from mgpu_doctor.check.check_result import CheckedResult, Level, Result, Subject
from mgpu_doctor.check.device_workload import GATE, PLAIN, SLOW_FORWARD, SLOW_STREAM, TRACED
from mgpu_doctor.check.kernel_spans import TracedSteps, read_trace
from mgpu_doctor.formatting import format_seconds, format_share
from mgpu_doctor.launch.job_command import BOXES_VARIABLE, job_environment
from mgpu_doctor.recording.box import read_box

PATIENCE = 120.0
"""Seconds for one run of the workload, which usually takes five; the first use of torch or of the
device on a machine may take a minute."""
RECORD_SECONDS = 3e-6
"""Beyond this, fewer steps are timed than the doctor was designed for; a choice."""
ERROR_SECONDS, ERROR_SHARE = 50e-6, 0.02
"""How much a phase may differ: the larger of the two. Events have a resolution of 0.5 µs, and the
marks of the two clocks are launches of a few µs apart; a choice."""
GATES_MISSED = 1
"""Gated steps that may fail more than in the bare run: a busy machine may stop the host for as
long as a gate."""
FEWEST = 3
"""The fewest timed steps of a kind that are compared."""
REPORT = (
    "report it with the output of `mgpu-doctor check --gpu --json`; until then, do not rely on "
)
SLOW_RANKS = REPORT + "slow ranks that mgpu-doctor names on this machine"

DEVICE = Subject("gpu-device", "device")
COST = Subject("gpu-event-cost", "event cost")
TIMED = Subject("gpu-timed-steps", "timed steps")
PHASE_ERROR = Subject("gpu-phases", "phases")
KERNELS = Subject("gpu-kernels", "kernels")
SLOW_WORK = Subject("gpu-slow-forward", "slow forward")
STREAM = Subject("gpu-slow-stream", "slow stream")
RUN_AHEAD = Subject("gpu-run-ahead", "run-ahead")
WAITS = Subject("gpu-synchronizations", "host waits")


class CannotTestError(Exception):
    """Nothing could be tested; the message says why in one sentence."""


@dataclass(frozen=True, slots=True)
class WorkloadRun:
    """One run of the workload. `phases`: number of a step -> its phases on the device by the probe,
    seconds in the order of `PHASES`; empty in the bare run."""

    report: Mapping[str, Any]
    trace: TracedSteps = field(default_factory=TracedSteps)
    phases: Mapping[int, Sequence[float]] = field(default_factory=dict)
    untimed: str | None = None
    """Why the probe did not time the device."""

    @property
    def steps(self) -> Sequence[Mapping[str, Any]]:
        steps: Sequence[Mapping[str, Any]] = self.report["steps"]
        return steps


@dataclass(frozen=True, slots=True)
class SelfTest:
    """The results, and the numbers behind them."""

    results: tuple[CheckedResult, ...]
    device: Mapping[str, Any]
    measured: Mapping[str, float | None]

    @property
    def numbers(self) -> dict[str, Any]:
        """Further keys of the JSON: the device, and what was measured in seconds, shares and
        counts."""
        return {"device": dict(self.device), "measured": dict(self.measured)}

    @property
    def headline(self) -> str:
        """Returns the outcome in one sentence."""
        wrong = sum(checked.is_improvable for checked in self.results)
        tested = sum(checked.result.level is not Level.NOTE for checked in self.results)
        if wrong:
            return f"{wrong} of {tested} tests failed on this GPU."
        return f"All {tested} tests passed: steps are timed right on this GPU."


def run_selftest(environment: Mapping[str, str]) -> SelfTest:
    """Run the workload twice and compare. Raises CannotTestError without a GPU or without torch."""
    bare = _run(environment, probed=False)
    return judge(bare, _run(environment, probed=True))


def judge(bare: WorkloadRun, probed: WorkloadRun) -> SelfTest:
    """Compare a bare run and one with the probe."""
    measured: dict[str, float | None] = {}
    tests: tuple[tuple[Subject, Callable[..., Result]], ...] = (
        (DEVICE, _device),
        (COST, _cost),
        (TIMED, _timed),
        (PHASE_ERROR, _phases),
        (KERNELS, _kernels),
        (SLOW_WORK, _slow_forward),
        (STREAM, _slow_stream),
        (RUN_AHEAD, _ran_ahead),
        (WAITS, _synchronizations),
    )
    results = [CheckedResult(subject, test(bare, probed, measured)) for subject, test in tests]
    return SelfTest(tuple(results), bare.report["device"], measured)


# --- runs ---------------------------------------------------------------------------------------


def _run(environment: Mapping[str, str], *, probed: bool) -> WorkloadRun:
    with tempfile.TemporaryDirectory(prefix="mgpu-doctor-") as name:
        folder = Path(name)
        boxes = folder / "boxes"
        boxes.mkdir()
        plain = {key: value for key, value in environment.items() if key != BOXES_VARIABLE}
        command = [sys.executable, device_workload.__file__, name]
        try:
            ended = subprocess.run(
                command,
                env=job_environment(plain, boxes if probed else None),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=PATIENCE,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise CannotTestError(
                f"the test training did not end within {PATIENCE:.0f} s: is the GPU in use by "
                "another job?"
            ) from None
        if ended.returncode:
            last = (ended.stderr.strip().splitlines() or [f"exit code {ended.returncode}"])[-1]
            raise CannotTestError(f"the test training failed: {last[:300]}")
        report = json.loads((folder / device_workload.WORKLOAD).read_text(encoding="utf-8"))
        if "trouble" in report:
            raise CannotTestError(_explain(report))
        return _read(report, folder, boxes)


def _explain(report: Mapping[str, Any]) -> str:
    if report["trouble"] == "no-torch":
        return (
            f"there is no PyTorch in this Python ({sys.executable}): install mgpu-doctor in the "
            "environment in which you train."
        )
    if report["trouble"] == "no-device":
        return f"PyTorch {report['torch']} finds no GPU on this machine: nothing to test."
    return f"{report['said']} is missing: devices of kind {report['kind']} cannot be timed."


def _read(report: Mapping[str, Any], folder: Path, boxes: Path) -> WorkloadRun:
    trace = TracedSteps()
    if (folder / device_workload.TRACE).exists():
        text = (folder / device_workload.TRACE).read_text(encoding="utf-8", errors="replace")
        trace = read_trace(json.loads(text))
    phases: dict[int, Sequence[float]] = {}
    untimed = None
    for path in boxes.glob(f"*{BOX_SUFFIX}"):
        box = read_box(path)
        untimed = box.birth.get("untimed")
        if len(box.steps) != len(report["steps"]):
            untimed = f"{len(box.steps)} of {len(report['steps'])} steps were found"
        elif box.device_times is not None:
            phases = {
                int(times["step_seq"]) - 1: times["phases"].tolist() for times in box.device_times
            }
    return WorkloadRun(report, trace, phases, untimed)


# --- judging ------------------------------------------------------------------------------------


def _device(bare: WorkloadRun, _: WorkloadRun, __: dict[str, float | None]) -> Result:
    device = bare.report["device"]
    runtime = f" ({device['runtime']})" if device["runtime"] else ""
    return Result(
        Level.NOTE, f"{device['name']}, {device['kind']}, torch {device['torch']}{runtime}"
    )


def _cost(bare: WorkloadRun, _: WorkloadRun, measured: dict[str, float | None]) -> Result:
    events = bare.report["events"]
    measured.update({f"event_{call}_seconds": seconds for call, seconds in events.items()})
    named = {"record": "recording", "query": "asking for", "elapsed_time": "comparing"}
    costs = ", ".join(
        f"{event_name} {format_seconds(round(events[key], 8))}" for key, event_name in named.items()
    )
    message = f"per event: {costs}"
    if events["record"] > RECORD_SECONDS:
        return Result(Level.NOTE, f"{message}; fewer steps are timed to keep the cost low")
    return Result(Level.PASS, message)


def _timed(_: WorkloadRun, probed: WorkloadRun, measured: dict[str, float | None]) -> Result:
    measured["timed_steps"] = len(probed.phases)
    message = f"{len(probed.phases)} of {len(probed.steps)} steps were timed on the device"
    if probed.untimed is not None or not probed.phases:
        reason = f": {probed.untimed}" if probed.untimed else ""
        return Result(Level.FAIL, message + reason, SLOW_RANKS)
    return Result(Level.PASS, message)


def _of_kind(run: WorkloadRun, kind: str) -> list[int]:
    """Returns the numbers of the timed steps of a kind."""
    return [number for number in run.phases if run.steps[number]["kind"] == kind]


TOO_FEW = Result(Level.NOTE, "not tested: too few steps were timed")


def _is_close(error: float, seconds: float) -> bool:
    return error <= max(ERROR_SECONDS, ERROR_SHARE * seconds)


def _phases(_: WorkloadRun, probed: WorkloadRun, measured: dict[str, float | None]) -> Result:
    """Compares the phases with events that the training recorded itself."""
    steps = _of_kind(probed, PLAIN)
    if len(steps) < FEWEST:
        return TOO_FEW
    errors, close = {}, True
    for position, phase in enumerate(("forward", "backward", "optimizer")):
        probe_seconds = [probed.steps[number]["phases"][position] for number in steps]
        device_seconds = [probed.phases[number][PHASES.index(phase)] for number in steps]
        errors[phase] = median(
            abs(a - b) for a, b in zip(probe_seconds, device_seconds, strict=True)
        )
        close = close and _is_close(errors[phase], median(probe_seconds))
        measured[f"{phase}_error_seconds"] = errors[phase]
    text = ", ".join(
        f"{phase} {format_seconds(round(error, 7))}" for phase, error in errors.items()
    )
    message = f"difference to the training's own events: {text}"
    return Result(Level.PASS, message) if close else Result(Level.FAIL, message, SLOW_RANKS)


def _kernels(_: WorkloadRun, probed: WorkloadRun, measured: dict[str, float | None]) -> Result:
    """Compares the phases with the kernels in the profiler's trace."""
    traced = [number for number in _of_kind(probed, TRACED) if number in probed.trace.phases]
    errors: dict[str, list[float]] = {}
    lengths: dict[str, list[float]] = {}
    for number in traced:
        for phase, bounds in probed.trace.phases[number].items():
            seconds = probed.phases[number][PHASES.index(phase)]
            errors.setdefault(phase, []).append(bounds.error(seconds))
            lengths.setdefault(phase, []).append(bounds.least)
    if not errors:
        reason = probed.report["untraced"] or "torch's profiler recorded no kernels of timed steps"
        return Result(Level.NOTE, f"not tested: {reason}")
    medians = {phase: median(values) for phase, values in errors.items()}
    measured.update({f"{phase}_kernel_error_seconds": error for phase, error in medians.items()})
    text = ", ".join(
        f"{phase} {format_seconds(round(error, 7))}" for phase, error in medians.items()
    )
    message = f"difference to the kernels that the profiler saw: {text}"
    if all(_is_close(error, median(lengths[phase])) for phase, error in medians.items()):
        return Result(Level.PASS, message)
    return Result(Level.FAIL, message, SLOW_RANKS)


def _slow_forward(_: WorkloadRun, probed: WorkloadRun, measured: dict[str, float | None]) -> Result:
    return _planted(probed, SLOW_FORWARD, "forward", "planted work in forward", measured)


def _slow_stream(_: WorkloadRun, probed: WorkloadRun, measured: dict[str, float | None]) -> Result:
    return _planted(probed, SLOW_STREAM, PHASES[WAIT], "planted work in another stream", measured)


def _planted(
    probed: WorkloadRun, kind: str, phase: str, fault: str, measured: dict[str, float | None]
) -> Result:
    """Whether planted work shows in its phase, with its length, and in no other."""
    plain, slow = _of_kind(probed, PLAIN), _of_kind(probed, kind)
    if min(len(plain), len(slow)) < FEWEST:
        return TOO_FEW
    planted = median(probed.steps[number]["extra"] for number in slow)
    increases = {}
    for position, name in enumerate(PHASES):
        usual, longer = (
            median(_zero_if_unknown(probed.phases[number][position]) for number in steps)
            for steps in (plain, slow)
        )
        increases[name] = longer - usual
    phase_increase = increases.pop(phase)
    measured[f"slow_{kind}_planted_seconds"] = planted
    measured[f"slow_{kind}_seen_seconds"] = phase_increase
    name = "waiting" if phase == PHASES[WAIT] else phase
    seen = f"{format_seconds(phase_increase)} more {name} seen"
    message = f"{fault}: {format_seconds(planted)} planted, {seen}"
    largest_other = max(increases.values(), key=abs)
    if _is_close(abs(phase_increase - planted), planted) and _is_close(abs(largest_other), planted):
        return Result(Level.PASS, message)
    return Result(Level.FAIL, message, SLOW_RANKS)


def _zero_if_unknown(seconds: float) -> float:
    return 0.0 if isnan(seconds) else seconds


def _ran_ahead(bare: WorkloadRun, probed: WorkloadRun, measured: dict[str, float | None]) -> Result:
    """Whether the host got through steps while the device had not yet begun them."""
    without, with_probe = (
        [bool(step["ran_ahead"]) for step in run.steps if step["kind"] == GATE]
        for run in (bare, probed)
    )
    measured["run_ahead_share_bare"] = sum(without) / len(without)
    measured["run_ahead_share"] = sum(with_probe) / len(with_probe)
    message = (
        f"the host did not wait for the device in {format_share(measured['run_ahead_share'])} of "
        f"the steps, {format_share(measured['run_ahead_share_bare'])} without the probe"
    )
    if not any(without):
        return Result(Level.NOTE, f"not tested: {message}")
    if sum(with_probe) >= sum(without) - GATES_MISSED:
        return Result(Level.PASS, message)
    return Result(
        Level.FAIL, message, REPORT + "`mgpu-doctor run` not slowing down training on this GPU"
    )


def _synchronizations(
    bare: WorkloadRun, probed: WorkloadRun, measured: dict[str, float | None]
) -> Result:
    """Whether the probe adds calls in which the host waits for the device."""
    without, with_probe = bare.trace.waits, probed.trace.waits
    measured["synchronizations_bare"], measured["synchronizations"] = without, with_probe
    if without is None or with_probe is None:
        reason = probed.report["untraced"] or "torch's profiler recorded no calls of the runtime"
        return Result(Level.NOTE, f"not counted: {reason}")
    message = f"{with_probe} synchronizing calls in the traced steps, {without} without the probe"
    if with_probe <= without:
        return Result(Level.PASS, message)
    return Result(
        Level.FAIL, message, REPORT + "`mgpu-doctor run` not slowing down training on this GPU"
    )
