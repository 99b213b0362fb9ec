"""What the scripts of this folder share: their options, a planted fault, and what they print.

A script calls it as it would call code of its own. It knows nothing of mgpu-doctor.
"""

import argparse
import os
import queue
import sys
import time
from itertools import pairwise
from pathlib import Path

FAULTS = ("none", "slow", "hang", "crash")


def parser(steps: int, place: str) -> argparse.ArgumentParser:
    """The options of a script with so many steps, whose fault is at this place."""
    options = argparse.ArgumentParser()
    options.add_argument("--steps", type=int, default=steps)
    options.add_argument("--fault", choices=FAULTS, default="none")
    options.add_argument("--place", default=place, help="where the fault is")
    options.add_argument("--rank", type=int, default=1, help="whose fault")
    options.add_argument("--ms", type=float, default=80.0, help="how slow, each time")
    options.add_argument("--at", type=int, default=8, help="time at which it hangs or crashes")
    options.add_argument("--mark", type=Path, default=Path(os.devnull), help="made as it hangs")
    options.add_argument("--times", type=Path, help="file for the seconds of a step")
    return options


class Planted:
    """A fault at one place of one rank, and the turns of the loop. `reports`: the rank that prints
    losses."""

    def __init__(self, options: argparse.Namespace, rank: int, reports: int = 0) -> None:
        self.options = options
        self.rank = rank
        self.reports = rank == reports
        self.place = options.place if options.rank == rank else ""
        self.calls = 0
        self.turns = 0
        self.began: list[tuple[float, float]] = []
        print(f"rank {rank} starts", file=sys.stderr)

    def turn(self) -> None:
        """Called once at the top of each turn."""
        self.turns += 1
        self.began.append((time.perf_counter(), time.process_time()))

    def here(self, place: str) -> None:
        """Called wherever a fault can be."""
        if place != self.place:
            return
        self.calls += 1
        if self.options.fault == "slow":
            time.sleep(self.options.ms / 1000)
        elif self.options.fault == "hang" and self.calls == self.options.at:
            self.options.mark.write_text(str(os.getpid()), encoding="utf-8")
            queue.SimpleQueue[int]().get()
        elif self.options.fault == "crash" and self.calls == self.options.at:
            raise ValueError(f"sample {self.calls} cannot be used")

    def log(self, loss: float, every: int = 10) -> None:
        """Called once a turn, with the loss of the turn."""
        if self.reports and self.turns % every == 0:
            print(f"step {self.turns} loss {loss:.4f}", flush=True)

    def finish(self) -> None:
        """Called once after the loop."""
        if not self.reports:
            return
        print(f"steps {self.turns}", flush=True)
        if self.options.times is not None:
            began = self.began[len(self.began) // 3 :]  # not what happens once, at the start
            lasted = sorted(after[0] - before[0] for before, after in pairwise(began))
            computed = sorted(after[1] - before[1] for before, after in pairwise(began))
            quarter = len(lasted) // 4  # of quick steps: what disturbs a step makes it longer
            both = f"{lasted[quarter]:.6f} {computed[quarter]:.6f}"
            self.options.times.write_text(both, encoding="utf-8")
