"""What a record of the black box costs the training: `python -m benchmarks.blackbox_cost`.

Times single calls of `Writer.step` (the clock's own cost is taken off) and, apart from it, the mean
CPU time over a whole loop; both hold the sums of the history. Several rounds show the spread.
"""

from __future__ import annotations

import argparse
import os
import platform
import tempfile
import time
from math import nan
from statistics import median

from mgpu_probes.inprocess.blackbox import Writer

PHASES = (0.01, nan, 0.1, 0.2, 0.05, nan, 0.02, nan, nan, 0.003)


def single_calls(writer: Writer, count: int) -> list[float]:
    """Nanoseconds of each of `count` records, sorted."""
    clock, step = time.perf_counter_ns, writer.step
    empty = -median(clock() - clock() for _ in range(1000))
    durations = []
    for number in range(count):
        end = time.monotonic_ns()
        start = clock()
        step(end, 383_000_000, number, 0, PHASES, 32, 4096, 2.5, 0.0, number, 4, 1, 0.3, 0, -1, 0)
        durations.append(clock() - start - empty)
    return sorted(durations)


def loop_mean(writer: Writer, count: int) -> float:
    """CPU nanoseconds a record over a loop that does nothing else."""
    step, clock = writer.step, time.monotonic_ns
    start = time.thread_time_ns()
    for number in range(count):
        step(clock(), 383_000_000, number, 0, PHASES, 32, 4096, 2.5, 0.0, number, 4, 1, 0.3, 0)
    return (time.thread_time_ns() - start) / count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--folder", help="where to put the box (default: a temporary folder)")
    arguments = parser.parse_args()
    print(f"{platform.machine()}, {os.cpu_count()} cores, Linux {platform.release()}, ", end="")
    print(f"Python {platform.python_version()}, load {os.getloadavg()[0]:.1f}")
    print(f"{arguments.rounds} rounds of {arguments.records} records; microseconds a record")
    rounds = []
    for _ in range(arguments.rounds):
        with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
            writer = Writer.open(folder)
            durations = single_calls(writer, arguments.records)
            quantiles = [
                durations[int(len(durations) * share)] for share in (0.5, 0.9, 0.99, 0.999)
            ]
            rounds.append(
                [*quantiles, sum(durations) / len(durations), loop_mean(writer, arguments.records)]
            )
            writer.close()
    names = ("p50", "p90", "p99", "p99.9", "mean", "CPU of a loop")
    for name, values in zip(names, zip(*rounds, strict=True), strict=True):
        low, middle, high = min(values), median(values), max(values)
        print(f"{name:>14}  {middle / 1e3:7.2f}  ({low / 1e3:.2f} to {high / 1e3:.2f})")


if __name__ == "__main__":
    main()
