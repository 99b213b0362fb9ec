"""The base class of PyTorch strategies: the steps of training that a strategy may override.

A strategy is a file with a subclass in the parent package; the loop calls its methods.
"""

import argparse
import sys
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, NoReturn

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from mgpu_trainers import catalogue
from mgpu_trainers.planting import Planted
from mgpu_trainers.pytorch.common import process_group
from mgpu_trainers.pytorch.common.passes import Precision
from mgpu_trainers.pytorch.common.process_group import Place
from mgpu_trainers.pytorch.common.torch_checkpoints import Checkpoint


def refuse_torch(name: str) -> NoReturn:
    """Ends the process, in which an import from torch failed, with the reason in one sentence."""
    why = catalogue.missing(catalogue.find(name)) or f"cannot be run with torch {torch.__version__}"
    print(f"{name} {why}.", file=sys.stderr)
    sys.exit(2)


class Strategy:
    """The methods are in the order in which the loop calls them."""

    name: ClassVar[str]
    join: Callable[..., AbstractContextManager[Place]] = staticmethod(process_group.join_group)
    autocasts: ClassVar[bool] = True
    """Whether the loop casts to a shorter precision; else the strategy does."""
    validates_together: ClassVar[bool] = False
    """Whether a forward pass needs all ranks."""

    def __init__(self, args: argparse.Namespace, where: Place) -> None:
        self.args = args
        self.place = where

    def share(self) -> tuple[int, int]:
        """Which part of the data this rank takes, from 0, and how many parts there are.

        Ranks that work on the same batch follow each other.
        """
        trainer = catalogue.find(self.name)
        parts = trainer.count_shares(self.place.world, getattr(self.args, "tp", None))
        return self.place.rank * parts // self.place.world, parts

    def note(self) -> str | None:
        """One sentence on what these devices cannot show of the strategy; None: they show it."""
        return None

    def wrap(self, model: nn.Module) -> nn.Module:
        """Wraps the model, which is on the device, into the one that is called."""
        return model

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=self.args.lr)

    def out(self) -> torch.device:
        """Where the model's scores come out."""
        return self.place.device

    def steps(self, steps_done: int, _planted: Planted, _checkpoint: Checkpoint) -> Iterable[int]:
        """The steps in which this rank learns, after `done` of them."""
        return range(steps_done + 1, self.args.steps + 1)

    def turn(self, _model: Any, *, last: bool) -> AbstractContextManager[None]:
        """A context for forward and backward of one batch; `last`: the optimizer step follows."""
        assert last or self.args.accumulate > 1
        return nullcontext()

    def inside(self, inner: nn.Module) -> nn.Module:
        """The part of the wrapped model that this rank computes, where faults are planted."""
        return inner

    def learn(
        self, model: nn.Module, precision: Precision, inputs: torch.Tensor, targets: torch.Tensor
    ) -> torch.Tensor | None:
        """Runs forward and backward of one batch; its mean loss, if this rank knows it."""
        with precision.forward():
            loss = cross_entropy(model(inputs), targets)
            part = loss / self.args.accumulate
        precision.backward(part)
        return loss

    def reporter(self) -> int:
        """The rank that knows losses and prints them."""
        return 0

    def updated(self, _model: nn.Module, _step: int) -> None:
        """Called after each optimizer step."""

    def trained(self, _model: nn.Module) -> None:
        """Called after the last step."""

    def state(self, model: nn.Module, optimizer: Any) -> tuple[Any, Any] | None:
        """Complete weights and optimizer states for a checkpoint; every rank calls it, rank 0
        needs it."""
        return (model.state_dict(), optimizer.state_dict()) if self.place.rank == 0 else None

    def load(self, model: nn.Module, optimizer: Any, weights: Any, states: Any) -> None:
        """Restores them; every rank calls it."""
        model.load_state_dict(weights)
        optimizer.load_state_dict(states)
