"""How long it takes to diagnose a hung job that was started without preparation.

    python -m benchmarks.hang [--ranks 2 4 8] [--times 5] [--how lock]

Starts `tests/jobs/hangs.py` without the doctor, waits until it hangs, and measures in one process:
finding the job, the first snapshot of all ranks, the confirmed verdict; and the whole command
`mgpu-doctor diagnose PID` with its start. Then the merge of synthetic stacks into one tree.

    python -m benchmarks.hang --timeout 12 [--ranks 2 3] [--times 100] [--load 4] [--keep FOLDER]

So many jobs under `mgpu-doctor run`, which the collective's time-out ends: those of `blame --part
time-outs` with these numbers of ranks, one after the other, again and again. Prints the load
average at each, and how often the rank is named, nobody, and a wrong one. `--load`: number of
processes that keep cores busy. `--keep`: where the recordings of misses stay.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path

from mgpu_probes.outside import jobs
from mgpu_probes.outside.job_snapshot import take_snapshot

from benchmarks.blame import Score, judge, line, total
from benchmarks.support import DOCTOR, JOBS, TORCHRUN, machine, spread
from benchmarks.trial_runs import TrialError, examined
from benchmarks.trials_hangs import time_outs
from mgpu_doctor.analysis.stacks.hang_analysis import analyse_hang
from mgpu_doctor.analysis.stacks.prefix_tree import build_newest_tree
from mgpu_doctor.case.job_snapshots import (
    Frame,
    JobSnapshot,
    Process,
    Role,
    Stack,
    Thread,
    read_job_snapshot,
)
from mgpu_doctor.diagnosis import diagnose
from mgpu_doctor.examine.live_targets import examine_target, target_of_pid

STARTS = 180.0
"""Seconds until a job must hang: eight imports of torch on two cores."""
SYNTHETIC = (1_024, 10_240)
DEPTH = 26


@contextmanager
def hung_job(ranks: int, how: str) -> Iterator[int]:
    """The launcher's pid of a hung job."""
    script = (str(JOBS / "hangs.py"), how, "--life", "900")
    command = [*TORCHRUN, str(ranks), *script]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    job = subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        end = time.monotonic() + STARTS
        while not _is_blocked(job.pid, ranks):
            if time.monotonic() > end or job.poll() is not None:
                raise SystemExit(f"the job of {ranks} ranks did not hang")
        yield job.pid
    finally:
        running_job = jobs.find(job.pid)
        for process in running_job.processes if running_job else ():
            os.kill(process.pid, signal.SIGKILL)
        job.wait()


def _is_blocked(pid: int, ranks: int) -> bool:
    running_job = jobs.find(pid)
    if running_job is None or len(running_job.ranks) < ranks:
        time.sleep(0.5)
        return False
    snapshots = []
    for _ in range(3):
        snapshots.append(read_job_snapshot(take_snapshot(running_job)))
        time.sleep(0.6)
    return analyse_hang([snapshot for snapshot in snapshots if snapshot is not None]) is not None


def measure_hang(ranks: int, how: str, times: int) -> None:
    finding_job, first, confirmed, command_seconds, right = [], [], [], [], 0
    with hung_job(ranks, how) as pid:
        for _ in range(times):
            began = time.perf_counter()
            job = jobs.find(pid)
            assert job is not None
            finding_job.append(time.perf_counter() - began)
            take_snapshot(job)
            first.append(time.perf_counter() - began)
            target = target_of_pid(pid)
            assert not isinstance(target, str)
            began = time.perf_counter()
            verdict = diagnose(examine_target(target, lambda _: None))
            confirmed.append(time.perf_counter() - began)
            culprits = [
                culprit.rank for finding in verdict.findings for culprit in finding.culprits
            ]
            began = time.perf_counter()
            process = subprocess.run(
                [*DOCTOR, "diagnose", str(pid), "--json"], capture_output=True, check=False
            )
            command_seconds.append(time.perf_counter() - began)
            reported = [
                culprit["rank"] for culprit in json.loads(process.stdout)["findings"][0]["culprits"]
            ]
            right += culprits == reported == [1]
    print(
        f"{ranks} ranks: found in {spread(finding_job, 'ms', 1e3, 0)}, all stacks after "
        f"{spread(first, 'ms', 1e3, 0)}, confirmed verdict after {spread(confirmed, 's')}, the "
        f"whole command {spread(command_seconds, 's')}; right rank {right}/{times}",
        flush=True,
    )


def time_out_hangs(ranks: Sequence[int], timeout: float, times: int, keep: Path | None) -> None:
    """Prints how often the rank is right, over `times` jobs that the time-out ends. The recordings
    of misses stay in the folder `keep`."""
    trials = [trial for trial in time_outs(timeout) if trial.ranks in ranks]
    scores: Counter[Score] = Counter()
    loads = []
    with tempfile.TemporaryDirectory() as folder:
        kept = keep or Path(folder)
        for number, trial in zip(range(times), cycle(trials), strict=False):
            recordings = kept / f"{number:03}"
            recordings.mkdir(parents=True)
            loads.append(os.getloadavg()[0])
            try:
                findings = examined(trial, recordings)["findings"]
            except TrialError as error:
                print(f"not judged: {error}", flush=True)
                continue
            score = judge(trial, findings)
            scores[score] += 1
            if score is Score.RIGHT:
                shutil.rmtree(recordings)
            print(f"load {loads[-1]:4.1f} {line(trial, findings, score, None)}", flush=True)
    print(
        f"{total(f'time-out of {timeout:g} s', scores)}; load average {spread(loads, '', 1.0, 1)}",
        flush=True,
    )


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """Keeps cores busy with this number of processes."""
    command = [sys.executable, "-c", "while True: pass"]
    running = [subprocess.Popen(command) for _ in range(processes)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def merging(ranks: int) -> None:
    """Three places of 26 frames each, one of them with a few ranks."""
    common = [Frame(f"call{n}", "train.py", n) for n in range(DEPTH - 1)]
    leaves = [Frame("all_reduce", "torch/distributed/distributed_c10d.py", 3252)]
    leaves += [Frame("load", "data.py", line) for line in (7, 8)]
    processes, stacks = [], []
    for rank in range(ranks):
        leaf = leaves[0] if rank % 3_000 > 2 else leaves[1 + rank % 2]
        frames = (leaf, *reversed(common))
        processes.append(
            Process(
                rank, 1, Role.RANK, "S", rank, rank, ranks, "python", (), 1, 1.0, None, None, None,
                None,
            )
        )  # fmt: skip
        thread = Thread(rank, "MainThread", True, False, False, frames)
        stacks.append(Stack(rank, 0.0, "py-spy", (thread,)))
    snapshot = JobSnapshot(0.0, "torchrun", ranks, tuple(processes), tuple(stacks))
    began = time.perf_counter()
    tree = build_newest_tree([snapshot])
    took = time.perf_counter() - began
    assert tree is not None
    print(f"merging the stacks of {ranks} ranks: {took * 1e3:.0f} ms", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="*", default=[2, 4, 8])
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--how", default="lock")
    parser.add_argument("--timeout", type=float)
    parser.add_argument("--load", type=int, default=0)
    parser.add_argument("--keep", type=Path)
    args = parser.parse_args()
    print(machine())
    if args.timeout is not None:
        with busy(args.load):
            time_out_hangs(args.ranks, args.timeout, args.times, args.keep)
        return
    for ranks in args.ranks:
        measure_hang(ranks, args.how, args.times)
    for ranks in SYNTHETIC:
        merging(ranks)


if __name__ == "__main__":
    main()
