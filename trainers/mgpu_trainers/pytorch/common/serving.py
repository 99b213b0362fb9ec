"""A parameter server and what goes between it and its workers, over send and receive.

A worker sends one row of numbers, a letter: its loss, its learning rate, the gradients, and what
its batch norm has counted. It gets the weights back, as a row.
"""

from collections.abc import Iterator
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

SERVER = 0
HEAD = 2
"""Numbers before the gradients."""
DONE = -1.0
"""The learning rate of a worker that has learned enough."""


def letter(model: nn.Module, loss: float, rate: float) -> torch.Tensor:
    gradients = [
        torch.zeros_like(each) if each.grad is None else each.grad for each in model.parameters()
    ]
    return row(torch.tensor([loss, rate]), *gradients, *_counted(model))


def row(*tensors: torch.Tensor) -> torch.Tensor:
    return torch.cat([each.detach().flatten().cpu() for each in tensors])


@torch.no_grad()
def unfold(numbers: torch.Tensor, tensors: list[torch.Tensor]) -> None:
    """Copies what stands in a row to where it belongs."""
    parts = numbers.split([each.numel() for each in tensors])
    for own, part in zip(tensors, parts, strict=True):
        own.copy_(part.view_as(own))


def _counted(model: nn.Module) -> list[torch.Tensor]:
    return [each for each in model.buffers() if each.is_floating_point()]


class Remote(torch.optim.Optimizer):
    """Stands for the server's optimizer in a worker: gradients out, weights in."""

    loss = 0.0
    """Of the last batch."""

    def __init__(self, model: nn.Module, rate: float) -> None:
        super().__init__(model.parameters(), {"lr": rate})
        self.model = model
        self.weights = row(*model.parameters())

    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # torch's is generic
        """Raises SystemExit where the server is gone: whoever started us says so. That it is there
        and does not answer in time, nobody else says."""
        assert closure is None
        try:
            dist.send(letter(self.model, self.loss, self.param_groups[0]["lr"]), SERVER)
            dist.recv(self.weights, SERVER)
        except RuntimeError as error:
            if "Timed out" in str(error):
                raise
            raise SystemExit(1) from None
        unfold(self.weights, list(self.model.parameters()))

    def leave(self) -> None:
        """Tells the server that nothing more comes."""
        dist.send(letter(self.model, self.loss, DONE), SERVER)


class Server:
    """Learns from letters in the order in which they come."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, workers: int) -> None:
        self.model = model
        self.optimizer = optimizer
        self.learning = set(range(1, workers + 1))
        self.lost = set[int]()
        self.updates = self.stale = 0
        """So far; and those of others, all in all, between a worker's weights and its gradients."""
        self._known = dict.fromkeys(self.learning, 0)
        self._inbox: SimpleQueue[tuple[int, torch.Tensor | None]] = SimpleQueue()
        self._size = len(letter(model, 0.0, 0.0))

    def letters(self) -> Iterator[tuple[int, torch.Tensor]]:
        """With the worker that sent it, until no worker is left."""
        for worker in self.learning:
            Thread(target=self._listen, args=(worker,), daemon=True).start()
        while self.learning:
            worker, sent = self._inbox.get()
            if sent is None:
                self.lost.add(worker)
            if sent is None or sent[1] == DONE:
                self.learning.discard(worker)
            else:
                yield worker, sent

    def _listen(self, worker: int) -> None:
        sent: torch.Tensor | None = None
        while sent is None or sent[1] != DONE:
            sent = torch.empty(self._size)
            try:
                dist.recv(sent, worker)
            except RuntimeError:  # it died
                self._inbox.put((worker, None))
                return
            self._inbox.put((worker, sent))

    def learn(self, worker: int, sent: torch.Tensor) -> float:
        """Takes a step with a worker's gradients, and sends it the weights; its loss."""
        for group in self.optimizer.param_groups:
            group["lr"] = float(sent[1])
        parameters = list(self.model.parameters())
        for each in parameters:
            each.grad = torch.empty_like(each)
        gradients = [each.grad for each in parameters if each.grad is not None]
        unfold(sent[HEAD:], [*gradients, *_counted(self.model)])
        self.optimizer.step()
        self.stale += self.updates - self._known[worker]
        self.updates += 1
        self._known[worker] = self.updates
        with suppress(RuntimeError):  # it died meanwhile, which its listener says
            dist.send(row(*parameters), worker)
        return float(sent[0])
