"""Runs one trial after the other, ends each after its steps, and leaves no process behind."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from mgpu_doctor.advice.treatment import Value
from mgpu_doctor.advice.treatment_catalogue import split_by_way
from mgpu_doctor.analysis.statistics.significance import LEAST_STEPS as LEAST_MEASURED
from mgpu_doctor.analysis.trials.switched_effect import SwitchedBlocks
from mgpu_doctor.analysis.trials.trial_run import Shortfall, TrialRun, measure_run
from mgpu_doctor.case.model import Case
from mgpu_doctor.case.process_metadata import Treated
from mgpu_doctor.case.recording_case import load_recording
from mgpu_doctor.diagnosis import diagnose
from mgpu_doctor.findings import Severity
from mgpu_doctor.recording import layout
from mgpu_doctor.recording.rank_pulse import pulses
from mgpu_doctor.treat.trial_process import (
    TrialRequest,
    adopt_orphans,
    end_children,
    kill_children,
)

FIRST_STEP = 10
"""Steps before are warm-up: allocators, buckets and workers settle, and `gc-freeze` acts at 5."""
LEAST_STEPS = 60
LEAST_SECONDS = 4.0
MOST_STEPS = 2000
FIRST_RUN, LAST_CALL = 1 / 12, 1 / 5
FEWEST = 8
"""Unless the user names the steps, the first run decides: at least 60, and 4 seconds of them. If it
takes longer than a twelfth of the budget, as few as show their own noise, 20; if it takes longer
than a fifth, 8. A job whose steps are slow can then be run four times: as it is, and in one block.
Choices."""
_POLL = 0.05
_PATIENCE = 10.0
"""Seconds in which the observer writes the end of the recording after the job was killed."""


class Problem(str, Enum):
    """Why a trial measured nothing, besides `Shortfall`."""

    CRASHED = "crashed"
    TOO_SLOW = "too-slow"
    """It did not reach its steps in time: it hangs, or is many times slower."""
    TOO_LARGE = "too-large"
    """It left too little of the machine's memory to others."""
    OVER_BUDGET = "over-budget"
    """The budget was used up before it reached its steps."""
    NOT_APPLIED = "not-applied"
    """The treatment changed nothing in any rank."""


@dataclass(frozen=True, slots=True)
class TrialFailure:
    """A trial that measured nothing."""

    problem: Problem | Shortfall
    reason: str
    """A clause that says what happened."""


@dataclass(frozen=True, slots=True)
class Trial:
    """A trial that ran. `case`: the job while it still ran, of a trial that asked for it."""

    result: TrialRun | TrialFailure
    seconds: float
    """Wall time of the trial, start and end included."""
    treated: tuple[Treated, ...] = ()
    """What the treatments changed in the first rank that reported it."""
    case: Case | None = None


class StoppedError(Exception):
    """The user stopped the trials."""


class TrialRunner:
    """Runs trials of one command. `private`: whether in private views. `is_stopped`: whether the
    user has stopped the trials. It is polled, as an exception in the middle of a trial's start or
    end would leave processes behind."""

    def __init__(
        self,
        command: Sequence[str],
        folder: Path,
        *,
        private: bool,
        is_stopped: Callable[[], bool] = bool,
    ) -> None:
        self._command = list(command)
        self._folder = folder
        self._private = private
        self._is_stopped = is_stopped
        self._count = 0
        adopt_orphans()

    def run(
        self,
        values: Mapping[str, Value],
        *,
        steps: int | None,
        limit: float,
        blocks: SwitchedBlocks | None = None,
        keeps_case: bool = False,
        is_short: Callable[[], bool] = bool,
    ) -> Trial:
        """Runs the job with these treatments until all ranks have made `steps` steps after the
        warm-up (None: the first run, which decides), or for `limit` seconds. `blocks`: of steps in
        which they are off and on; None: they are always on. `keeps_case`: also loads the case of
        the job while it still runs: afterwards it is one that was killed. `is_short`: whether the
        machine is short of memory, at which the trial is ended. Raises `StoppedError`."""
        if self._is_stopped():
            raise StoppedError
        began = time.monotonic()
        folder = self._folder / f"{self._count:03d}"
        self._count += 1
        recording, scratch = folder / "recording", folder / "scratch"
        recording.mkdir(parents=True, mode=0o700)
        scratch.mkdir(mode=0o700)
        request: TrialRequest = {
            "command": self._command,
            "recording": str(recording),
            "scratch": str(scratch) if self._private else "",
            "values": dict(values),
            "blocks": None if blocks is None else (FIRST_STEP, blocks.length, blocks.inverted),
            "session_pid": os.getpid(),
            "session_folder": str(self._folder),
        }
        (folder / "request.json").write_text(json.dumps(request), encoding="utf-8")
        process = subprocess.Popen(
            [sys.executable, "-m", "mgpu_doctor.treat.trial_process", str(folder / "request.json")],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # else the terminal's Ctrl-C would reach the job too
        )
        case: Case | None = None
        end = End.TIMED_OUT
        try:
            asked = {End.STOPPED: self._is_stopped, End.NO_MEMORY: is_short}
            end = _await_end(process, recording, steps, began, limit, asked=asked)
            if keeps_case and end in (End.REACHED, End.OVER):
                case = load_recording(recording)
        finally:
            _kill_job(process)
        if end is End.STOPPED:
            raise StoppedError
        result, treated = _measure(recording, steps, end, process.returncode)
        if isinstance(result, TrialRun) and _changed_nothing(values, treated):
            result = TrialFailure(Problem.NOT_APPLIED, _explain_refusal(treated))
        shutil.rmtree(scratch, ignore_errors=True)
        return Trial(result, time.monotonic() - began, treated, case)


def _changed_nothing(values: Mapping[str, Value], treated: Sequence[Treated]) -> bool:
    """Whether all treatments are the probe's, and none changed anything."""
    patches, variables = split_by_way(values)
    return bool(patches) and not variables and not any(each.changed for each in treated)


class End(Enum):
    """How the wait for a trial's steps ended."""

    REACHED = "all ranks have made the steps"
    OVER = "the job has ended by itself"
    TIMED_OUT = "the time is over"
    NO_MEMORY = "the machine is short of memory"
    STOPPED = "the user has stopped the trials"


def _await_end(
    process: subprocess.Popen[bytes],
    recording: Path,
    steps: int | None,
    began: float,
    limit: float,
    *,
    asked: Mapping[End, Callable[[], bool]],
) -> End:
    """Waits until all ranks have made their steps, the job or the time is over, or there is another
    reason in `asked`."""
    warm: float | None = None
    while process.poll() is None:
        now = time.monotonic()
        if now > began + limit:
            return End.TIMED_OUT
        for end, is_reached in asked.items():
            if is_reached():
                return end
        made = _count_steps(recording)
        if made >= FIRST_STEP and warm is None:
            warm = now
        if steps is not None:
            if made >= FIRST_STEP + steps:
                return End.REACHED
        elif warm is not None and (
            (made >= FIRST_STEP + LEAST_STEPS and now - warm >= LEAST_SECONDS)
            or made >= FIRST_STEP + MOST_STEPS
            or (made >= FIRST_STEP + LEAST_MEASURED and now - began > limit * FIRST_RUN)
            or (made >= FIRST_STEP + FEWEST and now - began > limit * LAST_CALL)
        ):
            return End.REACHED
        time.sleep(_POLL)
    return End.OVER


def _count_steps(recording: Path) -> int:
    """The steps that every rank that trains has recorded."""
    folder = layout.boxes(recording, str(_read_info(recording).get("host", "")))
    counts = [pulse.steps for pulse in pulses(folder).values()]
    return min((count for count in counts if count), default=0)


def _read_info(recording: Path) -> dict[str, object]:
    try:
        info = json.loads((recording / layout.INFO).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return info if isinstance(info, dict) else {}


def _kill_job(process: subprocess.Popen[bytes]) -> None:
    """Kills all that the observer of a job has started, also what it is just starting, and asks the
    observer to end, which records that: a screen beside it then shows no failure. Then kills what
    is left."""
    if process.poll() is None:  # else another process may have its pid
        # At once, before the observer can pass SIGTERM on to the job, which may handle it.
        kill_children(process.pid, first=process.terminate)
    ends = time.monotonic() + _PATIENCE
    while process.poll() is None and time.monotonic() < ends:
        kill_children(process.pid)
        time.sleep(_POLL)
    process.kill()
    process.wait()
    end_children()


def _measure(
    recording: Path, steps: int | None, end: End, code: int | None
) -> tuple[TrialRun | TrialFailure, tuple[Treated, ...]]:
    """What the trial measured, or why it measured nothing, and what its treatments changed."""
    try:
        case = load_recording(recording)
    except (OSError, ValueError) as error:
        return TrialFailure(Problem.CRASHED, f"nothing was recorded ({error})"), ()
    reported = (rank.metadata.treatments for rank in case.ranks if rank.metadata.treatments)
    treated = next(reported, ())
    if end is End.OVER and code:
        return TrialFailure(Problem.CRASHED, _explain_crash(case, code)), treated
    if end is End.TIMED_OUT:
        made, needed = _count_steps(recording), FIRST_STEP + (steps or FEWEST)
        return TrialFailure(Problem.TOO_SLOW, f"it made {made} of {needed} steps in time"), treated
    if end is End.NO_MEMORY:
        return TrialFailure(Problem.TOO_LARGE, "the machine ran short of memory"), treated
    least = FEWEST if end is End.REACHED else LEAST_MEASURED
    measured = measure_run(case, FIRST_STEP, steps or MOST_STEPS, least)
    if isinstance(measured, TrialRun):
        return measured, treated
    return TrialFailure(measured, _SHORTFALLS[measured]), treated


_SHORTFALLS = {
    Shortfall.NO_STEPS: "no training step was seen: name a command that trains, and a budget that "
    "lasts until its first steps",
    Shortfall.TOO_SHORT: f"the job has fewer than {FIRST_STEP + LEAST_MEASURED} steps: let it run "
    "longer",
    Shortfall.UNEVEN: "its ranks recorded too few steps in common",
}
_REFUSALS = {
    "already-set": "it is set already",
    "no-argument": "this version of torch has no such argument",
    "iterable-dataset": "its dataset is iterable: each worker would load the same samples",
    "no-workers": "its loader has no workers",
    "several-modules": "several modules use DistributedDataParallel",
    "no-buffers": "its model has no buffers",
    "no-convolution": "its model has no convolutions",
    "no-blocks": "its model has no repeated blocks",
    "batch-normalization": "its repeated blocks have batch normalization",
    "has-hook": "the script registers a communication hook of its own",
    "no-local-rank": "the launcher sets no LOCAL_RANK",
    "too-few-cores": "there are fewer cores than ranks",
    "no-path": "the script saves to an open file, or with positional options",
}


def _explain_crash(case: Case, code: int) -> str:
    """The title of the finding that explains the failure, or the exit code."""
    critical = (
        finding.title
        for finding in diagnose(case).findings
        if finding.severity is Severity.CRITICAL
    )
    return next(critical, f"the job ended with exit code {code}")


def _explain_refusal(treated: Sequence[Treated]) -> str:
    reasons = [
        f"{_REFUSALS.get(each.refused, each.refused)}{f' ({each.details})' if each.details else ''}"
        for each in treated
        if each.refused
    ]
    return reasons[0] if reasons else "the script makes no call that it changes"
