"""Whether `treat` is right: on placebos, resampled from real runs, and on jobs whose treatment is
known.

    python -m benchmarks.treat --record tests/recorded/treat/plain_runs.json [--runs 12]
    python -m benchmarks.treat --resample tests/recorded/treat/plain_runs.json [--sessions 200]
    python -m benchmarks.treat --jobs NAME|all [--jobs NAME …]
    python -m benchmarks.treat --find NAME|all [--find NAME …]

`--record` runs each of ten jobs so often, as it is, and keeps the step times; jobs that the file
has are kept. Nothing else should run meanwhile. `--resample` draws the runs of whole sessions from
those of one job after the other, in which no treatment does anything, and counts the verdicts. It
takes some seconds. `--jobs` and `--find`: see `benchmarks.treat_trials`; some minutes each name.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle, islice
from pathlib import Path

import numpy as np

from benchmarks.support import machine
from benchmarks.treat_jobs import ALL_JOBS
from benchmarks.treat_trials import LIMIT, find_treatment, render_table, run_jobs
from mgpu_doctor.advice.treatment_catalogue import TREATMENTS
from mgpu_doctor.analysis.trials.paired_effect import FALSE_HELPS
from mgpu_doctor.analysis.trials.trial_run import TrialRun
from mgpu_doctor.treat.trial_runner import TrialRunner
from mgpu_doctor.treat.trial_session import Session
from tests.support.simulated_trials import SimulatedJob

LAUNCH = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]
TRAINER = ["mgpu_trainers.pytorch.ddp", "--model", "cnn-nano", "--steps", "5000", "--device", "cpu"]
RECORDED_JOBS = {
    "torch-ddp": [sys.executable, "-m", *LAUNCH, *TRAINER],
    **{
        name: ALL_JOBS[name].helps
        for name in (
            "loader-workers",
            "loader-prefetch",
            "tf-parallel-map",
            "ddp-no-sync",
            "ddp-compress-fp16",
            "fsdp-keep-gathered",
            "autocast-bf16",
            "gc-freeze",
            "checkpoint-in-background",
        )
    },
}
"""The built-in trainer, and jobs that these treatments help, by their names."""
TREATMENTS_TRIED = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--record", type=Path, metavar="FILE")
    parser.add_argument("--resample", type=Path, metavar="FILE")
    parser.add_argument("--runs", type=int, default=12)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--sessions", type=int, default=200)
    parser.add_argument("--jobs", action="append", choices=["all", *ALL_JOBS], default=[])
    parser.add_argument("--find", action="append", choices=["all", *ALL_JOBS], default=[])
    parser.add_argument("--table", type=Path, metavar="FILE", help="rows of --jobs, kept and read")
    parser.add_argument("--within", type=float, default=1e9, metavar="SECONDS", help="of --jobs")
    parser.add_argument("--limit", type=float, default=LIMIT, metavar="SECONDS", help="of each job")
    args = parser.parse_args()
    print(machine(), flush=True)
    if args.record is not None:
        record(args.record, args.runs, args.steps)
    if args.resample is not None:
        jobs = json.loads(args.resample.read_text())["jobs"]
        print_rates(resample([*jobs.values()], args.sessions), jobs, args.sessions)
    if args.find:
        known = [name for name, jobs in ALL_JOBS.items() if jobs.finding is not None]
        found = [find_treatment(name) for name in (known if "all" in args.find else args.find)]
        sys.exit(0 if all(found) else 1)
    if args.jobs:
        names = [*ALL_JOBS] if "all" in args.jobs else args.jobs
        table = None if args.table is None else args.table.absolute()
        rows = run_jobs(names, within=args.within, limit=args.limit, table=table)
        print(render_table(rows))
        sys.exit(0 if all(row.is_right is not False for row in rows) else 1)


def record(file: Path, runs: int, steps: int) -> None:
    """Writes the step times, in seconds, of so many equal runs of each job."""
    known = json.loads(file.read_text())["jobs"] if file.exists() else {}
    for name, command in RECORDED_JOBS.items():
        if name not in known:
            known[name] = [*run_equal(name, command, runs, steps)]
            file.write_text(json.dumps({"machine": machine(), "jobs": known}) + "\n")


def run_equal(name: str, command: Sequence[str], runs: int, steps: int) -> Iterator[list[float]]:
    """The step times of each of so many equal runs, in seconds."""
    with tempfile.TemporaryDirectory(prefix="mgpu-doctor-bench-") as folder:
        runner = TrialRunner(command, Path(folder), private=False)
        for number in range(runs):
            result = runner.run({}, steps=steps, limit=120.0).result
            if not isinstance(result, TrialRun):
                sys.exit(f"{name}, run {number}: {result.reason}")
            print(f"{name}, run {number}: {result.seconds.mean() * 1e3:.1f} ms", flush=True)
            yield [round(float(each), 6) for each in result.seconds]


def resample(jobs: Sequence[Sequence[Sequence[float]]], sessions: int) -> Counter[str]:
    """Verdicts about placebos, in sessions whose runs are drawn from those of one job each."""
    random = np.random.default_rng(5)
    verdicts: Counter[str] = Counter()
    for _, runs in zip(range(sessions), cycle(jobs), strict=False):
        job = SimulatedJob(random, recorded=runs)
        session = Session(
            job.run, budget=1e9, steps=len(runs[0]), clock=job.clock, report=lambda *_: None
        )
        session.measure_baseline()
        for name in islice(TREATMENTS, TREATMENTS_TRIED):
            session.try_values({name: True})
        session.settle()
        verdicts.update(outcome.verdict.value for outcome in session.outcomes())
    return verdicts


def print_rates(
    verdicts: Counter[str], jobs: Mapping[str, Sequence[object]], sessions: int
) -> None:
    total, runs = verdicts.total(), sum(map(len, jobs.values()))
    print(f"{total} placebos in {sessions} sessions, from {runs} runs of {len(jobs)} jobs")
    for verdict, count in verdicts.most_common():
        print(f"  {verdict:22} {count:5}  {count / total:.2%}")
    print(f"stated: helps in at most {FALSE_HELPS:.1%}")


if __name__ == "__main__":
    main()
