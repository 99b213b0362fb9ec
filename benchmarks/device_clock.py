"""What timing steps on the device costs, how exact it is, and how soon it shows a slow rank.

    python -m benchmarks.device_clock [--runs 10] [--seed 1] [--only cost|error|detection|events]

Cost: a loop of nine marks per turn, with and without the timer, whose events do nothing; host time
alone. Error: phases of simulated jobs against what the simulated device did. Detection: timed turns
until the slow rank, and no other, is named. Events: what recording and asking for one cost; needs a
GPU.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from itertools import pairwise
from statistics import median
from typing import Any

import numpy as np
from mgpu_probes.inprocess import device_clock, layout

from benchmarks.support import machine, spread
from mgpu_doctor.analysis.statistics.significance import LEAST_STEPS
from mgpu_doctor.analysis.steps.step_alignment import join
from mgpu_doctor.analysis.steps.work_and_wait import attribute
from mgpu_doctor.analysis.stragglers.persistent_stragglers import find_stragglers
from tests.support.simulated_gpus.probed_jobs import ProbedRank, case_of, train
from tests.support.simulated_gpus.training_scripts import STRATEGIES, Job, Marks
from tests.support.simulated_gpus.virtual_gpus import MS, Mark

ROUNDS, TURNS = 15, 2_000
TURN_NS = 100 * MS
LONGEST = 120
"""Turns of a simulated job."""
TURN_OF_JOB = 80 * MS


class NoDevice:
    """A device clock whose events do nothing; its host's time is 100 ms per turn."""

    def __init__(self) -> None:
        self.now = 0
        self.collectives = 0
        self.mark: Any = None

    def clock(self) -> int:
        return self.now

    def record(self) -> int:
        return self.now

    def has_completed(self, _: int) -> bool:
        return True

    def nanoseconds_between(self, earlier: int, later: int) -> int:
        return later - earlier

    def give_back(self, events: list[int]) -> None:
        """They need no pool."""


def marks_of_a_turn() -> list[Mark]:
    """Those of DistributedDataParallel with a loader."""
    marks = Marks(0)
    return [
        marks.asked,
        marks.fetched,
        marks.forward_begins,
        marks.forward_ends,
        marks.backward_begins,
        marks.backward_waits,
        marks.backward_ends,
        marks.update_begins,
        marks.updated,
    ]


def microseconds_per_turn(*, timed: bool) -> float:
    """Host microseconds of the marks of one turn, with or without device timing."""
    device_clock.FREE_NS = 10**18  # ns: all turns are timed, whatever that costs
    device = NoDevice()
    rank = ProbedRank(device, host_clock=time.perf_counter_ns)  # type: ignore[arg-type]
    if not timed:
        for method in ("mark", "turn_ended"):
            setattr(rank.timer, method, lambda *_, **__: None)
    marks = marks_of_a_turn()
    spent = 0
    for turn in range(TURNS):
        began = time.thread_time_ns() if turn == TURNS // 4 else 0
        spent = began or spent
        for mark in marks:
            device.now += TURN_NS // len(marks)
            rank.mark(mark.mark, mark.data)
    nanoseconds = time.thread_time_ns() - spent
    assert len(rank.device_steps) >= (TURNS - 100 if timed else 0)
    return nanoseconds / (TURNS - TURNS // 4) * 1e-3


def report_cost() -> None:
    pairs = [
        (microseconds_per_turn(timed=False), microseconds_per_turn(timed=True))
        for _ in range(ROUNDS)
    ]
    added = [timed - bare for bare, timed in pairs]
    marks = len(marks_of_a_turn())
    print(
        f"{marks} marks per turn, {ROUNDS} rounds of {TURNS} turns, each timed; events cost nothing"
    )
    print(f"  without the timer   {spread([bare for bare, _ in pairs], 'µs per turn')}")
    print(f"  the timer adds      {spread(added, 'µs per turn')}")
    print(f"  per mark            {spread([added_us / marks for added_us in added], 'µs')}")
    print(f"  of a 100 ms turn    {spread(added, '%', 100 / 1e5, 4)}", flush=True)


def report_error(seed: int) -> None:
    print("\nstrategy       turns   error of a phase, µs: median    p99   most   of a turn: most")
    for strategy in STRATEGIES:
        job = Job(strategy, noise=0.03, micro_batches=4, seed=seed)
        errors, walls = [], []
        ranks = train(job, run_ahead=100)
        for rank in ranks:
            for step, truth in rank.compared():
                pairs = zip(step.phases, truth.phases, strict=True)
                errors += [abs(measured - real) * 1e-3 for measured, real in pairs if real]
                walls.append(abs(step.wall - truth.wall) / truth.wall)
        turns = sum(len(rank.device_steps) for rank in ranks)
        print(
            f"{strategy:<13} {turns:>6}   {median(errors):>28.2f} {np.quantile(errors, 0.99):>6.2f}"
            f" {max(errors):>6.2f}   {max(walls):>15.1e}",
            flush=True,
        )


def timed_turns_until_named(job: Job, culprit: int) -> int | None:
    """Turns that were timed until the slow rank, and no other, is named; None: not within the
    job."""
    joined = join(case_of(job, train(job, run_ahead=100)).ranks)
    attribution = attribute(joined)
    for turns in range(LEAST_STEPS, len(joined.steps) + 1):
        stragglers = find_stragglers(joined.between(0, turns), attribution.between(0, turns))
        if [straggler.rank for straggler in stragglers] == [culprit]:
            return turns
    return None


def report_detection(ranks: int, runs: int, seed: int) -> None:
    print(f"\n{ranks} ranks of DDP, 3 % noise, slow from the first turn; {runs} runs a line")
    print("slower by  phase        named   timed turns: median   p90")
    for share in (0.03, 0.05, 0.10):
        for phase in (layout.FORWARD, layout.BACKWARD, layout.OPTIMIZER):
            usual = Job(ranks=ranks, turns=LONGEST, kernels=4, layers=2, noise=0.03)
            delays = []
            for run in range(runs):
                culprit = (seed + run) % ranks
                slow = {culprit: {phase: int(TURN_OF_JOB * share)}}
                job = replace(usual, seed=seed + run, slow=slow)
                delays.append(timed_turns_until_named(job, culprit))
            named = [delay for delay in delays if delay is not None]
            waits = [LONGEST * 10 if delay is None else delay for delay in delays]
            print(
                f"{share:>9.0%}  {layout.PHASES[phase]:<10} {len(named):>4}/{runs:<4} "
                f"{_turns(median(waits)):>20} {_turns(float(np.quantile(waits, 0.9))):>5}",
                flush=True,
            )


def _turns(value: float) -> str:
    return "never" if value > LONGEST else f"{value:.0f}"


def report_events() -> None:
    """Prints the host time of CUDA events while a stream is busy."""
    print("\nevents of CUDA")
    try:
        import torch
    except ImportError:
        torch = None  # type: ignore[assignment]
    if torch is None or not torch.cuda.is_available():
        print("  not measured on a GPU yet: this machine has none, or torch has no CUDA")
        return
    stream = torch.cuda.current_stream()
    matrix = torch.randn(2048, 2048, device="cuda")
    rounds: dict[str, list[float]] = {"record": [], "query": [], "elapsed_time": [], "make": []}
    for _ in range(ROUNDS):
        began = time.perf_counter_ns()
        events = [torch.cuda.Event(enable_timing=True) for _ in range(512)]
        created = time.perf_counter_ns()
        for event in events:
            event.record(stream)  # the first use makes it
        torch.cuda.synchronize()
        for _ in range(20):
            matrix @ matrix
        recorded = time.perf_counter_ns()
        for event in events:
            event.record(stream)
        queried = time.perf_counter_ns()
        for event in events:
            event.query()
        answered = time.perf_counter_ns()
        torch.cuda.synchronize()
        compared = time.perf_counter_ns()
        for earlier, later in pairwise(events):
            earlier.elapsed_time(later)
        ended = time.perf_counter_ns()
        rounds["make"].append((created - began) / 512)
        rounds["record"].append((queried - recorded) / 512)
        rounds["query"].append((answered - queried) / 512)
        rounds["elapsed_time"].append((ended - compared) / 511)
    print(f"  {torch.cuda.get_device_name()}, torch {torch.__version__}")
    for name, nanoseconds in rounds.items():
        print(f"  {name:<13} {spread(nanoseconds, 'µs', 1e-3)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=("cost", "error", "detection", "events"))
    arguments = parser.parse_args()
    print(f"{machine()}, NumPy {np.__version__}, seeds from {arguments.seed}")
    if arguments.only in (None, "cost"):
        report_cost()
    if arguments.only in (None, "error"):
        report_error(arguments.seed)
    if arguments.only in (None, "detection"):
        report_detection(arguments.ranks, arguments.runs, arguments.seed)
    if arguments.only in (None, "events"):
        report_events()


if __name__ == "__main__":
    main()
