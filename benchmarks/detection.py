"""How soon a slow rank is named, how often a healthy one is, and what a diagnosis costs, simulated.

    python -m benchmarks.detection [--quick] [--ranks 64 512] [--runs 30] [--seed 1]

Delay: steps from the onset until its rank, and no other, is named, by a doctor that looks after
every second step (every fifth with --quick). A job that is slow from its first step has 5 steps of
warm-up and 20 that must be compared before anything is said.
False alarms: healthy jobs of 1,000 steps looked at every ten steps (once a second, with steps of
0.1 s), both at all their steps so far and at the newest ones as the live view does; every rank
named at any look counts.
`saved` is the share of the step time that fixing the rank would save: with many noisy ranks,
another rank is late in most steps anyway.
"""

from __future__ import annotations

import argparse
import resource
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.support import machine
from mgpu_doctor.analysis.cost.what_if import ideal
from mgpu_doctor.analysis.measures import measure
from mgpu_doctor.analysis.statistics.significance import LEAST_STEPS
from mgpu_doctor.analysis.steps.recent_steps import recent
from mgpu_doctor.analysis.steps.step_alignment import join
from mgpu_doctor.analysis.steps.work_and_wait import attribute
from mgpu_doctor.analysis.stragglers.persistent_stragglers import find_stragglers
from tests.support.fleets import Fleet, Slow, case_of, simulate

BEFORE = 100
LONGEST = 200
HEALTHY_STEPS = 1000
LOOK_EVERY = 10

HEALTHY = {
    "even noise": Fleet(0, 0),
    "neighbouring steps alike, AR(1) 0.8": Fleet(0, 0, correlation=0.8),
    "ranks 2 % uneven for good": Fleet(0, 0, uneven=0.02),
    "drift of 10 % that all share": Fleet(0, 0, drift=0.1),
}


@dataclass(frozen=True, slots=True)
class Named:
    after: int
    """Steps since the onset."""
    onset_error: int
    saved: float


def first_named(fleet: Fleet, slow: Slow, seed: int, every: int) -> Named | None:
    """When exactly the culprit is named first; None: not within `LONGEST` steps."""
    records, culprit = simulate(fleet, slow.start + LONGEST, seed, slow)
    joined = join(case_of(records).ranks)
    attribution = attribute(joined)
    for delay in range(every, LONGEST + 1, every):
        step_count = int(np.searchsorted(joined.steps, slow.start + delay))
        stragglers = (
            find_stragglers(joined.between(0, step_count), attribution.between(0, step_count))
            if step_count
            else ()
        )
        if [straggler.rank for straggler in stragglers] == [culprit]:
            since = stragglers[0].since or 0
            return Named(delay, abs(since - slow.start), stragglers[0].saved)
    return None


def named_in_health(fleet: Fleet, steps: int, seed: int) -> list[int]:
    """How many ranks of a healthy job are named at each look, at all steps and at the newest."""
    case = case_of(simulate(fleet, steps, seed)[0])
    joined = join(case.ranks)
    attribution = attribute(joined)
    counts = []
    for until in range(LOOK_EVERY, steps + 1, LOOK_EVERY):
        step_count = int(np.searchsorted(joined.steps, until))
        if step_count < LEAST_STEPS:
            continue
        counts.append(
            len(find_stragglers(joined.between(0, step_count), attribution.between(0, step_count)))
        )
        truncated = replace(
            case, ranks=tuple(replace(rank, steps=rank.steps[:until]) for rank in case.ranks)
        )
        newest = recent(truncated)
        if newest is not truncated:
            window = join(newest.ranks)
            counts.append(len(find_stragglers(window, attribute(window))))
    return counts


def report_delays(ranks: int, noise: float, runs: int, seed: int, every: int) -> None:
    fleet = Fleet(ranks, noise)
    for by in (0.03, 0.05, 0.10):
        for start in (0, BEFORE):
            results = [
                first_named(fleet, Slow(by, start), seed + run, every) for run in range(runs)
            ]
            named = [result for result in results if result is not None]
            delays = [result.after if result else LONGEST * 10 for result in results]
            errors = [result.onset_error for result in named]
            saved = f"{np.median([result.saved for result in named]):.1%}" if named else "-"
            onset = "-"
            if start and errors:
                onset = f"{np.median(errors):.0f}/{np.quantile(errors, 0.9):.0f}"
            print(
                f"{ranks:>6} {noise:>6.0%} {by:>7.0%} {start or 'first':>6} {len(named):>5}/{runs}"
                f" {_steps(np.median(delays)):>7} {_steps(np.quantile(delays, 0.9)):>6}"
                f" {onset:>12} {saved:>7}",
                flush=True,
            )


def report_alarms(ranks: int, noise: float, rank_steps: float, seed: int) -> None:
    runs = max(1, round(rank_steps / (HEALTHY_STEPS * ranks)))
    for kind, healthy in HEALTHY.items():
        fleet = replace(healthy, ranks=ranks, noise=noise)
        jobs = [named_in_health(fleet, HEALTHY_STEPS, 10**6 + seed + run) for run in range(runs)]
        named = sum(sum(counts) for counts in jobs)
        snapshots = sum(len(counts) for counts in jobs)
        watched = runs * HEALTHY_STEPS * ranks
        print(
            f"{ranks:>6} {noise:>6.0%} {snapshots:>8,} {runs:>6} {watched / 1e6:>12.1f} {named:>7} "
            f"{sum(any(counts) for counts in jobs):>5} {named / watched * 1e6:>10.2f}  {kind}",
            flush=True,
        )


def report_cost(ranks: int, steps: int, noise: float, seed: int) -> None:
    records, culprit = simulate(Fleet(ranks, noise), steps, seed, Slow(0.05, steps // 2))
    case = case_of(records)
    memory_before = _peak_of_now()
    began = time.perf_counter()
    joined = join(case.ranks)
    attribution = attribute(joined)
    stragglers = find_stragglers(joined, attribution)
    waste = ideal(attribution).waste_fraction
    compared = time.perf_counter() - began
    memory = _peak() - memory_before
    described = (
        ", ".join(f"rank {straggler.rank} since step {straggler.since}" for straggler in stragglers)
        or "nobody"
    )
    print(
        f"{ranks:,} ranks × {steps:,} steps: compared in {compared:.1f} s with {memory:.0f} MB "
        f"beyond the records; named {described} (slow: rank {culprit} since {steps // 2}); "
        f"{waste:.1%} waste",
        flush=True,
    )
    del joined, attribution
    memory_before = _peak_of_now()
    began = time.perf_counter()
    measure(case)
    print(
        f"{'':>8} everything that rules ask for: {time.perf_counter() - began:.1f} s, "
        f"{_peak() - memory_before:.0f} MB",
        flush=True,
    )


def _peak_of_now() -> float:
    """MB resident now; the peak is counted from here on (Linux)."""
    Path("/proc/self/clear_refs").write_text("5")
    return _peak()


def _peak() -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _steps(value: float) -> str:
    return "never" if value > LONGEST else f"{value:.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--quick", action="store_true", help="a minute instead of an hour")
    parser.add_argument("--ranks", type=int, nargs="+", default=[64, 512])
    parser.add_argument("--noise", type=float, nargs="+", default=None)
    parser.add_argument("--runs", type=int, default=None)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=("delays", "alarms", "cost"))
    arguments = parser.parse_args()
    runs = arguments.runs or (5 if arguments.quick else 30)
    noises = arguments.noise or ([0.03] if arguments.quick else [0.01, 0.03])
    print(f"{machine()}, NumPy {np.__version__}, {runs} runs a line, seeds from {arguments.seed}")
    if arguments.only in (None, "delays"):
        print(" ranks  noise  slower  since   found  median    p90  onset error   saved")
        for ranks in arguments.ranks:
            for noise in noises:
                report_delays(ranks, noise, runs, arguments.seed, 5 if arguments.quick else 2)
    if arguments.only in (None, "alarms"):
        print("\n ranks  noise    looks   jobs  M rank-steps  named  jobs  a million")
        for ranks in arguments.ranks:
            report_alarms(ranks, noises[-1], 1e5 if arguments.quick else 2e6, arguments.seed)
    if arguments.only in (None, "cost"):
        print("\na look")
        for ranks, steps in ((64, 200), (512, 200), (1000, 1000), (10_000, 1000)):
            report_cost(ranks, steps, 0.03, arguments.seed)


if __name__ == "__main__":
    main()
