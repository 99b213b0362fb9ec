"""What marks that a program sets itself cost: without a doctor, and under the probe.

    python -m benchmarks.mark_cost [--repeats 20]

A step holds five phases and one call of `step()`, and does nothing else: caches are warm. The least
of the repeats counts, because anything else on the machine only adds to it.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.support import machine

ROOT = Path(__file__).parents[1]
STEPS = 500
PHASES = ("input", "forward", "backward", "wait", "optimizer")


def measure(repeats: int) -> None:
    """The inner process: prints the ns of a step, and of `step()` alone."""
    import mgpu_doctor

    def whole() -> None:
        for name in PHASES:
            with mgpu_doctor.phase(name):
                pass
        mgpu_doctor.step()

    for call in (whole, mgpu_doctor.step):
        least = float("inf")
        for _ in range(repeats):
            began = time.perf_counter_ns()
            for _ in range(STEPS):
                call()
            least = min(least, (time.perf_counter_ns() - began) / STEPS)
        print(least)


def run(boxes: str | None, repeats: int) -> list[float]:
    """Microseconds of a step with five phases, and of `step()` alone, in a process of its own."""
    places = [str(ROOT / "probes/mgpu_probes/inject")] * (boxes is not None) + [str(ROOT)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(places), "RANK": "0"}
    environment.pop("MGPU_DOCTOR_BOXES", None)
    if boxes is not None:
        environment["MGPU_DOCTOR_BOXES"] = boxes
    command = [sys.executable, __file__, "--inner", "--repeats", str(repeats)]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return [float(line) / 1000 for line in ended.stdout.split()]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--repeats", type=int, default=20)
    options.add_argument("--inner", action="store_true", help=argparse.SUPPRESS)
    args = options.parse_args()
    if args.inner:
        measure(args.repeats)
        return
    print(machine())
    print(f"five phases and step(), µs per step; step() alone, µs ({args.repeats} repeats)")
    for name, bare in (("without a doctor", True), ("under the probe", False)):
        with tempfile.TemporaryDirectory() as folder:
            step, alone = run(None if bare else folder, args.repeats)
        print(f"{name:18} {step:8.2f} {alone:8.3f}")


if __name__ == "__main__":
    main()
