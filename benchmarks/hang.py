"""How long it takes to diagnose a hung job that was started without preparation.

    python -m benchmarks.hang [--ranks 2 4 8] [--times 5] [--how lock]

Starts `tests/jobs/hangs.py` without the doctor, waits until it hangs, and measures in one process:
finding the job, the first snapshot of all ranks, the confirmed verdict; and the whole command
`mgpu-doctor diagnose PID` with its start. Then the merge of synthetic stacks into one tree.

    python -m benchmarks.hang --timeout 12 [--ranks 2 3] [--times 5] [--load 2]

The same jobs under `mgpu-doctor run`, with a time-out of the collective that ends them: how often
the rank is named, and how often with its line. `--load`: number of processes that keep cores busy.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager

from mgpu_probes.outside import jobs
from mgpu_probes.outside.job_snapshot import take_snapshot

from benchmarks.support import DOCTOR, JOBS, TORCHRUN, machine, spread
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
from mgpu_doctor.diagnose import diagnose
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


def timed_out(ranks: int, how: str, times: int, timeout: float) -> None:
    """Prints how often rank and line are right, over `times` jobs that the time-out ended."""
    named = placed = 0
    for _ in range(times):
        with tempfile.TemporaryDirectory() as folder:
            recording = f"{folder}/job"
            job = [*TORCHRUN, str(ranks), str(JOBS / "hangs.py"), how, "--timeout", f"{timeout:g}"]
            command = [*DOCTOR, "run", "--dir", recording, "--", *job]
            subprocess.run(command, capture_output=True, check=False)
            diagnosed = subprocess.run(
                [*DOCTOR, "diagnose", recording, "--json"], capture_output=True, check=False
            )
            first = (json.loads(diagnosed.stdout)["findings"] or [{}])[0]
            right = [culprit["rank"] for culprit in first.get("culprits", ())] == [1]
            named += right
            placed += right and any(
                row["measure"] == "rank 1" and row["where"] for row in first["evidence"]
            )
    print(
        f"{ranks} ranks, time-out of {timeout:g} s: right rank {named}/{times}, with its line "
        f"{placed}/{times}",
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
    args = parser.parse_args()
    print(machine())
    if args.timeout is not None:
        with busy(args.load):
            for ranks in args.ranks:
                timed_out(ranks, args.how, args.times, args.timeout)
        return
    for ranks in args.ranks:
        measure_hang(ranks, args.how, args.times)
    for ranks in SYNTHETIC:
        merging(ranks)


if __name__ == "__main__":
    main()
