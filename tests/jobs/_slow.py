"""Options that the scripts of this folder share, and a planted delay."""

import argparse
import time
from statistics import median

import torch

# Loaded here, before any process group: when DistributedDataParallel loads it, it keeps the group
# from ever ending, and a gloo thread that is late can then abort the process at its exit (measured
# with torch 2.13; pytorch issue 190489). For the same reason each script lets go of its model
# before it destroys the group.
import torch._dynamo

PLACES = ("none", "input", "forward", "backward", "optimizer", "between")
MEASURED_TURNS = 10


def parser(steps: int = 40) -> argparse.ArgumentParser:
    options = argparse.ArgumentParser()
    options.add_argument("--steps", type=int, default=steps)
    options.add_argument("--fault", choices=PLACES, default="none")
    options.add_argument("--rank", type=int, default=1, help="who is slow; -1 is every rank")
    options.add_argument("--ms", type=float, default=20.0, help="how slow, each turn")
    options.add_argument("--until", type=int, help="turn after which the slowness is gone")
    options.add_argument("--percent", type=float, help="instead of --ms: of the turn's own time")
    options.add_argument("--after", type=int, default=0, help="turns before the slowness begins")
    options.add_argument("--burn", action="store_true", help="compute instead of sleeping")
    return options


def burn(seconds: float) -> None:
    """Keeps a core busy for so much CPU time."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


class Slow:
    """Sleeps in one place of one rank, each turn.

    With --percent it first measures the rank's own turns and starts after the tenth. `parts` is
    how often a turn comes by each place; they share the slowness.
    """

    def __init__(self, args: argparse.Namespace, rank: int, parts: int = 1) -> None:
        self.place = args.fault if args.rank in (rank, -1) else "none"
        self.percent = args.percent
        self.until = args.until
        self.parts = parts
        self.seconds = args.ms / 1000 / parts if args.percent is None else 0.0
        self.after = args.after
        self.burn = args.burn
        self.turns = 0
        self.began: list[float] = []

    def turn(self) -> None:
        """Called once at the top of each turn."""
        self.turns += 1
        if self.until is not None and self.turns > self.until:
            self.seconds = 0.0
        if self.percent is None or len(self.began) > MEASURED_TURNS:
            return
        self.began.append(time.perf_counter())
        if len(self.began) > MEASURED_TURNS:
            # The first two turns allocate buffers and are no measure.
            turns = [b - a for a, b in zip(self.began[2:], self.began[3:], strict=False)]
            self.seconds = median(turns) * self.percent / 100 / self.parts

    def here(self, place: str) -> None:
        begun = not self.after or self.turns > self.after  # loader workers see no turns
        if place == self.place and self.seconds and begun:
            (burn if self.burn else time.sleep)(self.seconds)

    def in_backward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Sleeps when the gradient of `hidden` is ready, in the middle of backward."""
        if self.place == "backward" and hidden.requires_grad:
            hidden.register_hook(lambda _gradient: self.here("backward"))
        return hidden

    def in_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Sleeps inside `optimizer.step()`, which comes once a turn."""
        if self.place == "optimizer":
            optimizer.register_step_pre_hook(lambda *_: self._in_one())

    def _in_one(self) -> None:
        for _ in range(self.parts):
            self.here("optimizer")
