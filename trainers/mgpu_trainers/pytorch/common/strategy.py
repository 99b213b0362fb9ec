"""What a strategy may do otherwise than one process that trains alone."""

import argparse
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from mgpu_trainers import schedule
from mgpu_trainers.faults import Planted
from mgpu_trainers.pytorch.common import place
from mgpu_trainers.pytorch.common.place import Place
from mgpu_trainers.pytorch.common.precision import Precision

if TYPE_CHECKING:
    from mgpu_trainers.pytorch.common.saving import Run


class Strategy:
    """The loop calls these in the order in which they stand."""

    name: ClassVar[str]
    join: Callable[..., AbstractContextManager[Place]] = staticmethod(place.joined)
    autocasts: ClassVar[bool] = True
    """The loop casts for a shorter precision; else the strategy does."""
    validates_together: ClassVar[bool] = False
    """Each forward pass needs all ranks."""

    def __init__(self, args: argparse.Namespace, where: Place) -> None:
        self.args = args
        self.place = where

    def share(self) -> tuple[int, int]:
        """Which part of the data this rank takes, the first being 0, and how many parts there are.

        Ranks that work on the same batch follow each other.
        """
        parts = schedule.replicas(self.name, self.place.world, getattr(self.args, "tp", None))
        return self.place.rank * parts // self.place.world, parts

    def note(self) -> str | None:
        """What the devices at hand cannot show of the strategy, as one sentence."""
        return None

    def wrap(self, model: nn.Module) -> nn.Module:
        """The model that is called, around the one that computes, which is on the device."""
        return model

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=self.args.lr)

    def out(self) -> torch.device:
        """Where the model's scores come out."""
        return self.place.device

    def steps(self, done: int, _planted: Planted, _run: "Run") -> Iterable[int]:
        """Those in which this rank learns, after `done` of them."""
        return range(done + 1, self.args.steps + 1)

    def turn(self, _model: Any, *, last: bool) -> AbstractContextManager[None]:
        """Around forward and backward of one batch; `last`: the step follows."""
        assert last or self.args.accumulate > 1
        return nullcontext()

    def inside(self, inner: nn.Module) -> nn.Module:
        """What this rank computes of the model that was wrapped: where faults are planted."""
        return inner

    def learn(
        self, model: nn.Module, precision: Precision, inputs: torch.Tensor, targets: torch.Tensor
    ) -> torch.Tensor | None:
        """Forward and backward of one batch; its mean loss, where this rank knows it."""
        with precision.forward():
            loss = cross_entropy(model(inputs), targets)
            part = loss / self.args.accumulate
        precision.backward(part)
        return loss

    def teller(self) -> int:
        """The rank that knows losses and prints them."""
        return 0

    def updated(self, _model: nn.Module, _step: int) -> None:
        """After each optimizer step."""

    def trained(self, _model: nn.Module) -> None:
        """After the last."""

    def state(self, model: nn.Module, optimizer: Any) -> tuple[Any, Any] | None:
        """Weights and optimizer, whole, for a checkpoint; all ranks call it, the first needs it."""
        return (model.state_dict(), optimizer.state_dict()) if self.place.rank == 0 else None

    def load(self, model: nn.Module, optimizer: Any, weights: Any, states: Any) -> None:
        """The way back, on each rank."""
        model.load_state_dict(weights)
        optimizer.load_state_dict(states)
