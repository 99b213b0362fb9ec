"""One checkpoint in a folder, whole at any moment, and the way back from it."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import torch
from torch import nn

from mgpu_trainers.kept import FILE
from mgpu_trainers.pytorch.common.precision import Precision
from mgpu_trainers.pytorch.common.strategy import Strategy


@dataclass(frozen=True, slots=True)
class Run:
    """What a checkpoint is of."""

    strategy: Strategy
    model: nn.Module
    optimizer: torch.optim.Optimizer
    precision: Precision

    def save(self, folder: str, step: int) -> None:
        """All ranks take part; the first one writes, over the checkpoint before."""
        state = self.strategy.state(self.model, self.optimizer)
        if state is None or self.strategy.place.rank:
            return
        weights, states = state
        kept = {"model": self.strategy.args.model, "step": step, "weights": weights}
        kept |= {"optimizer": states, "precision": self.precision.state()}
        file = Path(folder) / FILE
        part = file.with_suffix(".part")
        with _undisturbed():
            file.parent.mkdir(parents=True, exist_ok=True)
            torch.save(kept, part)
            os.replace(part, file)

    def resume(self, folder: str) -> int:
        """The step that the checkpoint was saved after; 0: there is none.

        Ends the process with one sentence where it cannot be read, or is of another model.
        """
        file = Path(folder) / FILE
        if not file.exists():
            return 0
        try:
            kept = torch.load(file, map_location="cpu", weights_only=True)
            if kept["model"] != self.strategy.args.model:
                self._give_up(f"{file} is of {kept['model']}, not of {self.strategy.args.model}")
            self.strategy.load(self.model, self.optimizer, kept["weights"], kept["optimizer"])
            self.precision.load(kept["precision"])
            return int(kept["step"])
        except Exception as error:
            self._give_up(f"{file} cannot be resumed from ({type(error).__name__}); move it away")

    def _give_up(self, why: str) -> NoReturn:
        if self.strategy.place.rank == 0:
            print(f"{self.strategy.name}: {why}", file=sys.stderr)
        sys.exit(2)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Who is asked to end meanwhile ends afterwards, and leaves no part of a file behind."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
