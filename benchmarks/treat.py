"""Whether `treat` is right: on placebos, resampled from real runs, and on jobs whose treatment is
known.

    python -m benchmarks.treat --record tests/recorded/treat/plain_runs.json [--runs 12]
    python -m benchmarks.treat --resample tests/recorded/treat/plain_runs.json [--sessions 200]
    python -m benchmarks.treat --jobs NAME|all [--jobs NAME …]
    python -m benchmarks.treat --find NAME|all [--find NAME …]

`--record` runs the built-in trainer torch-ddp so often, as it is, and keeps the step times. Nothing
else should run meanwhile. `--resample` draws the runs of whole sessions from them, in which no
treatment does anything, and counts the verdicts. It takes some seconds. `--jobs`
and `--find`: see `benchmarks.treat_trials`; some minutes for each name.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from itertools import islice
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

JOB = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]
TRAINER = ["mgpu_trainers.pytorch.ddp", "--model", "cnn-nano", "--steps", "5000", "--device", "cpu"]
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
        args.record.write_text(json.dumps(record(args.runs, args.steps)) + "\n")
    if args.resample is not None:
        runs = json.loads(args.resample.read_text())["seconds"]
        print_rates(resample(runs, args.sessions), len(runs), args.sessions)
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


def record(count: int, steps: int) -> dict[str, object]:
    """The step times of so many equal runs, in seconds."""
    command = [sys.executable, "-m", *JOB, *TRAINER]
    seconds = []
    with tempfile.TemporaryDirectory(prefix="mgpu-doctor-bench-") as folder:
        runner = TrialRunner(command, Path(folder), private=False)
        for number in range(count):
            result = runner.run({}, steps=steps, limit=120.0).result
            if not isinstance(result, TrialRun):
                sys.exit(f"run {number}: {result.reason}")
            print(f"run {number}: {result.seconds.mean() * 1e3:.1f} ms per step", flush=True)
            seconds.append([round(float(each), 6) for each in result.seconds])
    return {"job": " ".join(TRAINER), "machine": machine(), "seconds": seconds}


def resample(runs: list[list[float]], sessions: int) -> Counter[str]:
    """Verdicts about placebos, in sessions whose runs are drawn from these."""
    random = np.random.default_rng(5)
    verdicts: Counter[str] = Counter()
    for _ in range(sessions):
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


def print_rates(verdicts: Counter[str], runs: int, sessions: int) -> None:
    total = verdicts.total()
    print(f"{total} placebos in {sessions} sessions, resampled from {runs} real runs")
    for verdict, count in verdicts.most_common():
        print(f"  {verdict:22} {count:5}  {count / total:.2%}")
    print(f"stated: helps in at most {FALSE_HELPS:.1%}")


if __name__ == "__main__":
    main()
