"""Jobs on which a treatment helps, changes nothing, or breaks something, and what `treat` says.

    python -m benchmarks.treat --jobs loader-workers --jobs gc-freeze
    python -m benchmarks.treat --jobs all
    python -m benchmarks.treat --find ddp-no-search
    python -m benchmarks.treat --find all

Each verdict is held against what is known of the job, and the measured gain against that of the
same job with the script edited by hand. `--find` runs `treat` on the job that it helps without
naming the treatment, until it is shown to help: that must happen within the budget, and the job as
it is must have the finding that the treatment fixes. `all`: of those that have one.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mgpu_doctor.advice.treatment import Value
from mgpu_doctor.advice.treatment_catalogue import describe_values
from mgpu_doctor.analysis.comparing.step_time_noise import mean_level
from mgpu_doctor.analysis.trials.trial_run import TrialRun
from mgpu_doctor.analysis.trials.trial_verdict import Verdict
from mgpu_doctor.formatting import format_share
from mgpu_doctor.treat.job_treatment import JobTreatment
from mgpu_doctor.treat.trial_runner import TrialRunner
from mgpu_doctor.treat.trial_session import Outcome, Session

JOBS = Path(__file__).parents[1] / "tests" / "jobs"
BUDGET = 600.0
NOTHING = frozenset({Verdict.NO_DIFFERENCE, Verdict.DOES_NOT_FIT})
BROKEN = frozenset({Verdict.FAILS, Verdict.CHANGES_LOSS})


def alone(*words: str) -> list[str]:
    """A job of one process."""
    return [sys.executable, str(JOBS / "treatable.py"), *words]


def keras(*words: str) -> list[str]:
    """A job of one process with TensorFlow."""
    return [sys.executable, str(JOBS / "treatable_tf.py"), *words]


def ranks(script: str, *words: str) -> list[str]:
    """A job of two ranks."""
    torchrun = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return [sys.executable, "-m", *torchrun, str(JOBS / script), *words]


@dataclass(frozen=True, slots=True)
class Trials:
    """A treatment and its jobs. None: no such job is known."""

    value: Value
    helps: list[str]
    by_hand: list[str]
    """The job that it helps, with the script edited."""
    same: list[str]
    breaks: list[str] | None = None
    finding: str | None = None
    """Code of the finding about the job that it helps; None: the doctor has none about it."""


_UNUSED = ("--kept", "2000", "--width", "64", "--batch", "8", "--steps", "20000")
_SPLIT = ("--accumulate", "4", "--link", "4", "--width", "64", "--layers", "2", "--steps", "5000")
_SAVES = ("--save-ms", "200", "--step-ms", "40")
_CHAIN = ("--chain", "60", "--width", "512", "--batch", "256")
_SLEEPS = ("--step-ms", "20")
_GARBAGE = ("--garbage", "100000", *_SLEEPS)
TRIALS = {
    "loader-workers": Trials(
        2,
        alone("--sample-ms", "5"),
        alone("--sample-ms", "5", "--workers", "2", "--persistent"),
        alone(*_SLEEPS),
        alone("--sample-ms", "5", "--alone"),
        finding="input-bound",
    ),
    "loader-persistent": Trials(
        True,
        alone("--workers", "1", "--epoch", "4", *_SLEEPS),
        alone("--workers", "1", "--epoch", "4", "--persistent", *_SLEEPS),
        alone("--workers", "1", *_SLEEPS),
    ),
    "ddp-no-search": Trials(
        True,
        ranks("ddp_settings.py", "--find-unused", *_UNUSED),
        ranks("ddp_settings.py", *_UNUSED),
        ranks("ddp_settings.py", "--steps", "5000"),
        ranks("ddp_settings.py", "--find-unused", "--spare", "3", *_UNUSED),
        finding="unused-parameter-scan",
    ),
    "ddp-no-sync": Trials(
        4,
        ranks("ddp_settings.py", *_SPLIT),
        ranks("ddp_settings.py", "--no-sync", *_SPLIT),
        ranks("ddp_settings.py", "--no-sync", "--fault", "forward", "--rank", "-1", *_SPLIT),
        finding="accumulation-syncs",
    ),
    "gc-freeze": Trials(
        True,
        alone(*_GARBAGE),
        alone("--freeze", *_GARBAGE),
        alone(*_SLEEPS),
        finding="gc-pauses",
    ),
    "threads": Trials(
        1,
        alone("--spawn", "--width", "256", "--layers", "8"),
        alone("--spawn", "--width", "256", "--layers", "8", "--threads", "1"),
        alone("--spawn", "--width", "256", "--layers", "8", "--threads", "1"),
        finding="cpu-oversubscribed",
    ),
    "checkpoint-in-background": Trials(
        True,
        alone(*_SAVES),
        alone("--background", *_SAVES),
        alone(*_SLEEPS),
        alone("--check-file", *_SAVES),
        finding="checkpoint-stall",
    ),
    "compile": Trials(
        True,
        ranks("treatable.py", *_CHAIN),
        ranks("treatable.py", "--compile", *_CHAIN),
        ranks("treatable.py", *_SLEEPS),
    ),
    "optimizer-fused": Trials(
        True,
        alone("--layers", "300", "--width", "8", "--no-foreach"),
        alone("--layers", "300", "--width", "8", "--fused"),
        alone("--fused", *_SLEEPS),
    ),
    "tf-cache": Trials(
        True,
        keras("--sample-ms", "10"),
        keras("--sample-ms", "10", "--cache"),
        keras(*_SLEEPS),
    ),
}


def run_jobs(names: Sequence[str]) -> bool:
    """Runs the jobs of these treatments; returns whether all verdicts are right."""
    right = count = 0
    for name in names:
        trials = TRIALS[name]
        _set_threads(name)
        for job, command, expected in _list_jobs(trials):
            outcome, plain = _try(command, {name: trials.value})
            is_right = outcome.verdict in expected
            right, count = right + is_right, count + 1
            mark = "right" if is_right else "WRONG"
            print(f"{mark}  {_describe(name, job, outcome)}", flush=True)
            if job == "helps":
                print(_compare(outcome, _gain_by_hand(trials, plain)), flush=True)
    print(f"right: {right} of {count}")
    return right == count


def _compare(outcome: Outcome, by_hand: float) -> str:
    """The gain of the edited script, and what is left of it with the treatment."""
    share = outcome.saved.share if outcome.saved is not None else 0.0
    reached = format_share(share / by_hand) if by_hand > 0 else "unknown"
    return f"    by hand {format_share(by_hand)}; the treatment reaches {reached} of that"


def _list_jobs(trials: Trials) -> Iterator[tuple[str, list[str], frozenset[Verdict]]]:
    yield "helps", trials.helps, frozenset({Verdict.HELPS})
    yield "same", trials.same, NOTHING
    if trials.breaks is not None:
        yield "breaks", trials.breaks, BROKEN


def _try(command: list[str], values: dict[str, Value]) -> tuple[Outcome, float]:
    """The verdict about a treatment, and the mean step of the job as it is, in seconds."""
    with _folder() as folder:
        runner = TrialRunner(command, folder, private=False)
        session = Session(
            runner.run, budget=BUDGET, steps=None, clock=time.monotonic, report=lambda *_: None
        )
        session.measure_baseline()
        session.try_values(values)
        session.settle()
        return session.outcomes()[0], session.baseline.seconds


def _gain_by_hand(trials: Trials, plain: float) -> float:
    """The share of the step time that editing the script saves: the mean of two runs."""
    with _folder() as folder:
        runner = TrialRunner(trials.by_hand, folder, private=False)
        runs = [runner.run({}, steps=None, limit=BUDGET).result for _ in range(2)]
    seconds = [mean_level(run.seconds).seconds for run in runs if isinstance(run, TrialRun)]
    if not seconds:
        sys.exit(f"the edited job cannot be run: {runs}")
    return 1 - sum(seconds) / len(seconds) / plain


class _FoundError(Exception):
    """The treatment is shown to help: the rest need not be tried."""


def find_treatment(name: str) -> bool:
    """Whether `treat` has the finding that the treatment fixes, and finds the treatment, which
    nothing names, within its budget."""
    _set_threads(name)
    treatment = JobTreatment(TRIALS[name].helps, private=False)
    began = time.monotonic()

    def stop_when_found(_action: str, _left: float) -> None:
        if treatment.session is not None and any(
            outcome.verdict is Verdict.HELPS and name in outcome.values
            for outcome in treatment.session.outcomes()
        ):
            raise _FoundError

    is_found = False
    with _folder() as folder:
        try:
            treatment.run(folder, budget=BUDGET, steps=None, report=stop_when_found)
        except _FoundError:
            is_found = True
    report = treatment.read_report()
    is_found = is_found or (report is not None and name in report.kept)
    order = ", ".join(each.name for each in treatment.candidates)
    codes = [finding.code for finding in treatment.findings]
    expected = TRIALS[name].finding
    is_known = expected is None or expected in codes
    print(f"{name}: {'found' if is_found else 'NOT FOUND'} within {time.monotonic() - began:.0f} s")
    missing = "" if is_known else f" WITHOUT {expected}"
    print(f"    findings: {', '.join(codes)}{missing}; tries in this order: {order}")
    for outcome in () if report is None else report.outcomes:
        print(f"    {_describe(describe_values(outcome.values), '', outcome)}", flush=True)
    return is_found and is_known


def _set_threads(name: str) -> None:
    """One thread for each rank: else small jobs measure how threads wait."""
    os.environ["OMP_NUM_THREADS"] = "1"
    if name == "threads":
        del os.environ["OMP_NUM_THREADS"]


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    """The folder of the trials, in which the jobs work, too."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory(prefix="mgpu-doctor-bench-") as folder:
        os.chdir(folder)
        try:
            yield Path(folder)
        finally:
            os.chdir(before)


def _describe(name: str, job: str, outcome: Outcome) -> str:
    saved = outcome.saved
    measured = outcome.reason or ""
    if saved is not None:
        low, high = format_share(saved.low), format_share(saved.high)
        measured = f"{format_share(saved.share)} ({low} to {high})"
    measured += f"  {outcome.runs} runs"
    return f"{name:26} {job:7} {outcome.verdict.value:20} {measured}"
