"""What observing a command costs: the doctor's CPU seconds and the wall time it adds.

    python benchmarks/doctor_cost.py [--runs 9] [-- COMMAND…]

Bare and observed runs of a trivial command alternate; printed are medians, their spread, and the
machine. CPU seconds are those of everything that was started for the run (getrusage, children)
less those of the bare command. The processes that carry the output are no children of the
doctor's; their CPU is printed by itself, from a run that prints 100 MB through them.
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence

LARGE = 100_000_000


def run_once(command: Sequence[str]) -> tuple[float, float]:
    """Wall and CPU seconds of the command and its children."""
    usage_before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begun = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    wall = time.perf_counter() - begun
    usage_after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (
        wall,
        usage_after.ru_utime + usage_after.ru_stime - usage_before.ru_utime - usage_before.ru_stime,
    )


def observed(command: Sequence[str], folder: str, *options: str) -> list[str]:
    recording = tempfile.mkdtemp(dir=folder)
    verb = [sys.executable, "-m", "mgpu_doctor", "run", *options, "--dir", recording]
    return [*verb, "--", *command]


def through_pipe(command: Sequence[str]) -> float:
    """Wall seconds until a reader has all that the command prints."""
    begun = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout
        while process.stdout.read(1 << 20):
            pass
    return time.perf_counter() - begun


def print_spread(name: str, values: Sequence[float], unit: str = "s") -> None:
    middle = statistics.median(values)
    print(f"{name:<44}{middle:8.3f} {unit}   ({min(values):.3f} to {max(values):.3f})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, usage="%(prog)s [--runs N] [COMMAND…]")
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("command", nargs="*", default=["true"])
    arguments = parser.parse_args()
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, "
          f"Linux {platform.release()}, Python {platform.python_version()}, "
          f"load {os.getloadavg()[0]:.1f}, median of {arguments.runs} (least to most)")  # fmt: skip
    printing = ["head", "-c", str(LARGE), "/dev/zero"]
    wall, cpu, quiet_wall, bare_pipe, seen_pipe = [], [], [], [], []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(arguments.runs):
            bare = run_once(arguments.command)
            watched = run_once(observed(arguments.command, folder))
            quiet = run_once(observed(arguments.command, folder, "-q"))
            wall.append(watched[0] - bare[0])
            cpu.append(watched[1] - bare[1])
            quiet_wall.append(quiet[0] - bare[0])
            bare_pipe.append(through_pipe(printing))
            seen_pipe.append(through_pipe(observed(printing, folder, "-q")))
    print_spread("the doctor's CPU, with a diagnosis", cpu)
    print_spread("added wall time, with a diagnosis", wall)
    print_spread("added wall time, --quiet", quiet_wall)
    print_spread("100 MB through a pipe, bare", bare_pipe)
    print_spread("100 MB through a pipe, observed", seen_pipe)


if __name__ == "__main__":
    main()
