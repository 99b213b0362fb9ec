"""What `treat` says of the jobs of `benchmarks.treat_jobs`, and whether that is right.

    python -m benchmarks.treat --jobs loader-workers --jobs gc-freeze
    python -m benchmarks.treat --jobs all --table rows.jsonl --within 3600
    python -m benchmarks.treat --find ddp-no-search
    python -m benchmarks.treat --find all

Each verdict is held against what is known of the job, and the measured gain against that of the
same job with the script edited by hand. In the row `placebo` a treatment that does nothing on a CPU
is tried on the job that the named treatment helps. Rows are appended to the table when they are
measured; rows that it has are not measured again, so a run that ended early goes on. `--find` runs
`treat` on the job that it helps without naming the treatment, until it is shown to help: that must
happen within the budget, and the job as it is must have the finding that the treatment fixes.
`all`: of those that have one.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.treat_jobs import ALL_JOBS, NO_JOBS, Jobs
from mgpu_doctor.advice.treatment_catalogue import TREATMENTS, describe_values
from mgpu_doctor.analysis.comparing.step_time_noise import mean_level
from mgpu_doctor.analysis.trials.trial_run import TrialRun
from mgpu_doctor.analysis.trials.trial_verdict import Verdict
from mgpu_doctor.formatting import format_share
from mgpu_doctor.treat.job_treatment import JobTreatment
from mgpu_doctor.treat.trial_outcome import Outcome
from mgpu_doctor.treat.trial_runner import Trial, TrialRunner
from mgpu_doctor.treat.trial_session import BaselineError, Session

BUDGET = 600.0
LIMIT = 240.0
"""Seconds for the trials of one job, unless the user says so."""
LEAST = 120.0
"""A job is not begun with less time than this."""
WRITTEN = 20.0
"""Seconds by which the trials of a job may exceed their budget: those of one run."""
KINDS = ("helps", "breaks", "same", "placebo")
"""The order of the rows: those that tell most first."""
PLACEBO = "expandable-segments"
"""It sets an environment variable that only the allocator of GPUs reads."""
EXPECTED = {
    "helps": frozenset({Verdict.HELPS}),
    "breaks": frozenset({Verdict.FAILS, Verdict.CHANGES_LOSS}),
    "same": frozenset({Verdict.NO_DIFFERENCE, Verdict.DOES_NOT_FIT}),
    "placebo": frozenset({Verdict.NO_DIFFERENCE}),
}
ALIKE = 1.25
"""Equal runs that differ by more than this factor do not show what an edit gains. A choice."""
WITHIN = 0.2
"""The measured gain may differ from that by hand by this share of it."""


@dataclass(frozen=True, slots=True)
class Row:
    """What was measured of one job."""

    treatment: str
    job: str
    """One of `KINDS`."""
    verdict: str
    is_right: bool | None
    """None: there was no time for a verdict."""
    gain: float | None
    low: float | None
    high: float | None
    """Share of the step time, or memory, that is saved, and its interval."""
    by_hand: float | None
    """The share that editing the script saves; None: not measured."""
    price: float | None
    """Share of the step time that a treatment which saves memory costs."""
    runs: int
    reason: str
    load: float
    """Load of the machine, mean of before and after."""
    seconds: float

    @property
    def is_near(self) -> bool | None:
        """Whether the gain is about that of the edited script; None: one is unknown."""
        if self.gain is None or not self.by_hand or self.by_hand < 0:
            return None
        return abs(self.gain - self.by_hand) <= WITHIN * self.by_hand


def run_jobs(
    names: Collection[str], *, within: float, limit: float, table: Path | None
) -> list[Row]:
    """Measures the jobs of these treatments that the table does not have yet, within so many
    seconds, `limit` for each; returns all rows of these treatments."""
    ends = time.monotonic() + within
    rows = [row for row in read_rows(table) if row.treatment in names]
    known = {(row.treatment, row.job) for row in rows if row.is_right is not None}
    for name, job, command in list_jobs(names):
        if (name, job) in known:
            continue
        left = ends - time.monotonic() - WRITTEN
        if left < LEAST:
            break
        row = measure(name, job, command, min(limit, left))
        rows = [each for each in rows if (each.treatment, each.job) != (name, job)] + [row]
        print(describe_row(row), flush=True)
        if table is not None:
            with table.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(row)) + "\n")
    return rows


def list_jobs(names: Collection[str]) -> Iterator[tuple[str, str, list[str]]]:
    """Treatment, kind of job and command, those that tell most first."""
    for kind in KINDS:
        for name in ALL_JOBS:
            jobs = ALL_JOBS[name]
            command = jobs.helps if kind == "placebo" else getattr(jobs, kind)
            if name in names and command is not None:
                yield name, kind, command


def read_rows(table: Path | None) -> list[Row]:
    """The newest row of each job in a table; none if there is no file."""
    if table is None or not table.exists():
        return []
    rows = [Row(**json.loads(line)) for line in table.read_text(encoding="utf-8").splitlines()]
    return list({(row.treatment, row.job): row for row in rows}.values())


def measure(name: str, job: str, command: Sequence[str], limit: float) -> Row:
    """The verdict about one job, and how the gain compares with that of the edited script."""
    jobs, began, load = ALL_JOBS[name], time.monotonic(), os.getloadavg()[0]
    values = {PLACEBO: True} if job == "placebo" else {name: jobs.value}
    _set_threads(name)
    by_hand: float | None = None
    with _folder() as folder:
        plain = TrialRunner(command, folder / "plain", private=False)
        session = Session(
            plain.run,
            budget=limit * (0.7 if job == "helps" else 1.0),
            steps=None,
            clock=time.monotonic,
            report=lambda *_: None,
            by_memory=jobs.by_memory,
        )
        try:
            session.measure_baseline()
        except BaselineError as error:
            outcome = Outcome(values, Verdict.UNTRIED, str(error))
        else:
            session.try_values(values)
            session.settle()
            (outcome,) = session.outcomes()
            if job == "helps":
                edited = TrialRunner(jobs.by_hand, folder / "edited", private=False)
                by_hand = _gain_by_hand(edited, plain, session, jobs)
    decisive = outcome.decisive
    return Row(
        treatment=name,
        job=job,
        verdict=outcome.verdict.value,
        is_right=None if outcome.verdict is Verdict.UNTRIED else outcome.verdict in EXPECTED[job],
        gain=decisive.share if decisive is not None else None,
        low=decisive.low if decisive is not None else None,
        high=decisive.high if decisive is not None else None,
        by_hand=by_hand,
        price=-outcome.saved.share if jobs.by_memory and outcome.saved is not None else None,
        runs=outcome.runs,
        reason=outcome.reason or "",
        load=round((load + os.getloadavg()[0]) / 2, 1),
        seconds=round(time.monotonic() - began),
    )


def _gain_by_hand(
    edited: TrialRunner, plain: TrialRunner, session: Session, jobs: Jobs
) -> float | None:
    """The share that editing the script saves, by two runs of it between two of the job as it is;
    None: it cannot be run, or equal runs differ too much, as where others use the machine."""
    steps = session.steps
    trials = [runner.run({}, steps=steps, limit=LIMIT) for runner in (edited, edited, plain)]
    values = [_value(trial, jobs) for trial in trials]
    before = _value(Trial(session.plain[-1], 0.0), jobs)
    first, second, after = values
    if before is None or first is None or second is None or after is None:
        return None
    if any(max(pair) > ALIKE * min(pair) for pair in ((before, after), (first, second))):
        return None
    return 1 - (first + second) / (before + after)


def _value(trial: Trial, jobs: Jobs) -> float | None:
    """The mean step, or the memory, of a trial."""
    run = trial.result
    if not isinstance(run, TrialRun):
        return None
    return run.memory_bytes if jobs.by_memory else mean_level(run.seconds).seconds


def describe_row(row: Row) -> str:
    """One line for the terminal."""
    mark = {True: "right", False: "WRONG", None: "-----"}[row.is_right]
    gain = _interval(row)
    by_hand = "" if row.by_hand is None else f"  by hand {format_share(row.by_hand)}"
    far = "  FAR FROM THAT BY HAND" if row.is_near is False else ""
    words = f"{mark}  {row.treatment:26} {row.job:7} {row.verdict:20} {gain}{by_hand}{far}"
    return f"{words}  {row.runs} runs, {row.seconds:.0f} s, load {row.load:.1f}  {row.reason}"


def render_table(rows: Sequence[Row]) -> str:
    """All treatments as a table in Markdown: what is known, and what is untried."""
    lines = [
        "| name | gain (95 % interval) | by hand | job that it breaks | job that it does not "
        "change | load |",
        "|---|---|---|---|---|---|",
    ]
    known = {(row.treatment, row.job): row for row in rows}
    for name, treatment in TREATMENTS.items():
        if name not in ALL_JOBS:
            why = "needs a GPU" if treatment.needs_gpu else NO_JOBS[name]
            lines.append(f"| `{name}` | untried: {why} | | | | |")
            continue
        helps, breaks, same = (known.get((name, job)) for job in ("helps", "breaks", "same"))
        loads = [f"{row.load:.0f}" for row in (helps, breaks, same) if row is not None]
        cells = [
            "" if helps is None else _cell(helps, _gain(helps)),
            "" if helps is None or helps.by_hand is None else format_share(helps.by_hand),
            "" if breaks is None else _cell(breaks, breaks.verdict),
            "" if same is None else _cell(same, same.verdict),
            ", ".join(loads),
        ]
        lines.append(f"| `{name}` | {' | '.join(cells)} |")
    placebos = [row for row in rows if row.job == "placebo" and row.is_right is not None]
    judged = [row for row in rows if row.job != "placebo" and row.is_right is not None]
    near = [row.is_near for row in rows if row.is_near is not None]
    lines += [
        "",
        f"Right: {sum(bool(row.is_right) for row in judged)} of {len(judged)} verdicts. "
        f"The gain is within {format_share(WITHIN)} of that by hand in {sum(near)} of {len(near)}. "
        f"Of {len(placebos)} placebos, {sum(row.verdict == Verdict.HELPS for row in placebos)} are "
        "said to help.",
    ]
    return "\n".join(lines)


def _cell(row: Row, text: str) -> str:
    return text if row.is_right else f"{'no time' if row.is_right is None else 'WRONG'}: {text}"


def _gain(row: Row) -> str:
    what = "" if row.price is None else f" of memory, for {format_share(row.price)} more time"
    return f"{_interval(row)}{what}" if row.is_right else f"{row.verdict} {_interval(row)}".strip()


def _interval(row: Row) -> str:
    if row.gain is None or row.low is None or row.high is None:
        return ""
    return f"{format_share(row.gain)} ({format_share(row.low)} to {format_share(row.high)})"


class _FoundError(Exception):
    """The treatment is shown to help: the rest need not be tried."""


def find_treatment(name: str) -> bool:
    """Whether `treat` has the finding that the treatment fixes, and finds the treatment, which
    nothing names, within its budget."""
    _set_threads(name)
    treatment = JobTreatment(ALL_JOBS[name].helps, private=False)
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
    expected = ALL_JOBS[name].finding
    is_known = expected is None or expected in codes
    print(f"{name}: {'found' if is_found else 'NOT FOUND'} within {time.monotonic() - began:.0f} s")
    missing = "" if is_known else f" WITHOUT {expected}"
    print(f"    findings: {', '.join(codes)}{missing}; tries in this order: {order}")
    for outcome in () if report is None else report.outcomes:
        saved = "" if outcome.saved is None else format_share(outcome.saved.share)
        print(f"    {describe_values(outcome.values)}: {outcome.verdict.value} {saved}", flush=True)
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
