"""One checkpoint in a folder, complete at any moment, and resuming from it.

Weights that are sharded among ranks are gathered first, so that any strategy can resume.
"""

import argparse
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NoReturn, Protocol

import torch
from torch import nn
from torch.distributed.checkpoint import state_dict as whole

from mgpu_trainers.option_checks import CHECKPOINT_FILE
from mgpu_trainers.pytorch.common.passes import Precision
from mgpu_trainers.pytorch.common.process_group import Place


class Stateful(Protocol):
    """What a checkpoint asks of a strategy."""

    name: ClassVar[str]
    args: argparse.Namespace
    place: Place

    def state(self, model: nn.Module, optimizer: Any) -> tuple[Any, Any] | None: ...

    def load(self, model: nn.Module, optimizer: Any, weights: Any, states: Any) -> None: ...


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Saves and restores one strategy's model, optimizer and loss scaling."""

    strategy: Stateful
    model: nn.Module
    optimizer: torch.optim.Optimizer
    precision: Precision

    def save(self, folder: str, step: int) -> None:
        """Replaces the checkpoint; every rank must call it, and rank 0 writes."""
        state = self.strategy.state(self.model, self.optimizer)
        if state is None or self.strategy.place.rank:
            return
        weights, states = state
        saved = {"model": self.strategy.args.model, "step": step, "weights": weights}
        saved |= {"optimizer": states, "precision": self.precision.state()}
        file = Path(folder) / CHECKPOINT_FILE
        part = file.with_suffix(".part")
        with _signals_blocked():
            file.parent.mkdir(parents=True, exist_ok=True)
            torch.save(saved, part)
            os.replace(part, file)

    def resume(self, folder: str) -> int:
        """The step after which the checkpoint was saved; 0: no checkpoint.

        Ends the process with one sentence if it cannot be read or is of another model.
        """
        file = Path(folder) / CHECKPOINT_FILE
        if not file.exists():
            return 0
        try:
            saved = torch.load(file, map_location="cpu", weights_only=True)
            if saved["model"] != self.strategy.args.model:
                self._give_up(f"{file} is of {saved['model']}, not of {self.strategy.args.model}")
            self.strategy.load(self.model, self.optimizer, saved["weights"], saved["optimizer"])
            self.precision.load(saved["precision"])
            return int(saved["step"])
        except Exception as error:
            self._give_up(f"{file} cannot be resumed from ({type(error).__name__}); move it away")

    def _give_up(self, why: str) -> NoReturn:
        if self.strategy.place.rank == 0:
            print(f"{self.strategy.name}: {why}", file=sys.stderr)
        sys.exit(2)


@contextmanager
def _signals_blocked() -> Iterator[None]:
    """Delays SIGINT and SIGTERM, so that no partial file is left behind."""
    previous_mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous_mask)


FULL_STATE = whole.StateDictOptions(full_state_dict=True, cpu_offload=True)


def gather_state(model: nn.Module, optimizer: Any) -> tuple[Any, Any]:
    return whole.get_state_dict(model, optimizer, options=FULL_STATE)


def load_state(model: nn.Module, optimizer: Any, weights: Any, states: Any) -> None:
    """`states`: of weights by their names, or by their numbers as an optimizer alone gives them."""
    names = [name for name, _ in model.named_parameters()]
    (group,) = states["param_groups"]
    called = dict(zip(group["params"], names, strict=True))
    by_name: Any = {
        "state": {called[key]: state for key, state in states["state"].items()},
        "param_groups": [{**group, "params": names}],
    }
    whole.set_state_dict(
        model, optimizer, model_state_dict=weights, optim_state_dict=by_name, options=FULL_STATE
    )
