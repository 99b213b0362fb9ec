"""What a trace on demand costs the traced job: its steps before, during and after the trace.

    python -m benchmarks.trace_cost [--ranks 2] [--steps 20]

`train torch-ddp` runs, `mgpu-doctor trace` traces some of its steps, and its own black boxes show
how long every step took. The longest step after warm-up is the one in which the traces were
written; those before it were traced.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.support import DOCTOR, machine
from mgpu_doctor.case.model import Case
from mgpu_doctor.examine.case_sources import load_cases

WARM_UP = 20
"""Steps before the trace is requested."""
PATIENCE = 120.0
NOWHERE = subprocess.DEVNULL


def recorded(folder: Path) -> Case:
    (case,) = load_cases([str(folder)], lambda _: None)
    return case


def traced(folder: Path, traces: Path, ranks: int, steps: int) -> Case:
    """The recording of a job with some traced steps."""
    options = ["--ranks", str(ranks), "--steps", "100000", "--quiet", "--dir", str(folder)]
    command = [*DOCTOR, "train", "torch-ddp", *options]
    job = subprocess.Popen(command, stdout=NOWHERE, stderr=NOWHERE)
    try:
        until = time.monotonic() + PATIENCE
        while job.poll() is None and time.monotonic() < until and not warm(folder, ranks):
            time.sleep(1)
        subprocess.run(
            [*DOCTOR, "trace", str(folder), "--steps", str(steps), "-o", str(traces)],
            check=False,
            stdout=NOWHERE,
            stderr=NOWHERE,
        )
        time.sleep(3)
    finally:
        job.terminate()
        job.wait()
    return recorded(folder)


def warm(folder: Path, ranks: int) -> bool:
    if not (folder / "hosts").is_dir():
        return False
    case = recorded(folder)
    return len(case.ranks) == ranks and all(len(rank.steps) > WARM_UP for rank in case.ranks)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=20)
    args = parser.parse_args()
    print(machine())
    with tempfile.TemporaryDirectory(prefix="mgpu-doctor-bench-") as folder:
        traces = Path(folder, "traces")
        case = traced(Path(folder, "run"), traces, args.ranks, args.steps)
        sizes = [file.stat().st_size for file in traces.iterdir()] if traces.is_dir() else []
    if not sizes:
        raise SystemExit("nothing was traced: look at `mgpu-doctor trace` by hand.")
    for rank in case.ranks:
        took = rank.steps["wall_ns"] * 1e-6
        written = WARM_UP + int(np.argmax(took[WARM_UP:]))
        usual_ms = np.median(took[WARM_UP // 2 : max(WARM_UP, written - args.steps)])
        while_ = np.median(took[max(0, written - args.steps + 1) : written])
        print(
            f"rank {rank.rank}: a step takes {usual_ms:.0f} ms before, {while_:.0f} ms while it is "
            f"traced, {took[written]:.0f} ms where the trace is written"
        )
    print(f"{max(sizes) / 1e6:.0f} MB a rank at most")


if __name__ == "__main__":
    main()
