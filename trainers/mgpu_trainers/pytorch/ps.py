"""Training with an asynchronous parameter server: no worker waits for a slower one.

    python -m mgpu_trainers.apart --ranks 3 mgpu_trainers.pytorch.ps --steps 100

Rank 0 has the weights and the optimizer. Each of the others sends it the gradients of a batch, and
gets the current weights, with the other workers' updates. If a worker dies, the others continue;
without the server, training ends.

A worker's message is one row of numbers: its loss, its learning rate, the gradients, and batch
norm's running statistics. The answer is the weights, as a row.
"""

import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from mgpu_trainers.planting import Planted
from mgpu_trainers.pytorch.common import process_group
from mgpu_trainers.pytorch.common.passes import Precision
from mgpu_trainers.pytorch.common.torch_checkpoints import Checkpoint
from mgpu_trainers.pytorch.common.torch_loop import main
from mgpu_trainers.pytorch.common.torch_strategy import Strategy

SERVER = 0

HEADER = 2
"""Numbers of a message before the gradients: loss and learning rate."""

DONE = -1.0
"""In place of a learning rate: the worker has taken all its steps."""


def make_message(model: nn.Module, loss: float, rate: float) -> torch.Tensor:
    gradients = [
        torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        for parameter in model.parameters()
    ]
    return flatten(torch.tensor([loss, rate]), *gradients, *_float_buffers(model))


def flatten(*tensors: torch.Tensor) -> torch.Tensor:
    return torch.cat([tensor.detach().flatten().cpu() for tensor in tensors])


@torch.no_grad()
def unflatten_into(numbers: torch.Tensor, tensors: list[torch.Tensor]) -> None:
    """Copies a row of numbers into `tensors`."""
    parts = numbers.split([tensor.numel() for tensor in tensors])
    for tensor, part in zip(tensors, parts, strict=True):
        tensor.copy_(part.view_as(tensor))


def _float_buffers(model: nn.Module) -> list[torch.Tensor]:
    return [buffer for buffer in model.buffers() if buffer.is_floating_point()]


_SERVER_DIED = ("closed by peer", "reset by peer", "Broken pipe", "Connection refused")
"""Parts of gloo's messages about a peer whose process has ended."""


class RemoteOptimizer(torch.optim.Optimizer):
    """The server's optimizer as a worker sees it: sends gradients, receives weights."""

    loss = 0.0
    """Mean loss of the last batch."""

    def __init__(self, model: nn.Module, rate: float) -> None:
        super().__init__(model.parameters(), {"lr": rate})
        self.model = model
        self.weights = flatten(*model.parameters())

    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # torch's is generic
        """Raises SystemExit if the server is dead, which the launcher reports; raises every other
        error of torch, such as that it does not answer in time, which nothing else reports."""
        assert closure is None
        try:
            dist.send(make_message(self.model, self.loss, self.param_groups[0]["lr"]), SERVER)
            dist.recv(self.weights, SERVER)
        except RuntimeError as error:
            if any(phrase in str(error) for phrase in _SERVER_DIED):
                raise SystemExit(1) from None
            raise
        unflatten_into(self.weights, list(self.model.parameters()))

    def leave(self) -> None:
        """Tells the server that no more messages follow."""
        dist.send(make_message(self.model, self.loss, DONE), SERVER)


class Server:
    """Takes a step for each message, in the order in which they arrive."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, workers: int) -> None:
        self.model = model
        self.optimizer = optimizer
        self.learning = set(range(1, workers + 1))
        self.lost = set[int]()
        self.updates = self.stale = 0
        """Updates so far, and the sum of those that workers' weights were behind."""
        self._known = dict.fromkeys(self.learning, 0)
        self._inbox: SimpleQueue[tuple[int, torch.Tensor | None]] = SimpleQueue()
        self._size = len(make_message(model, 0.0, 0.0))

    def messages(self) -> Iterator[tuple[int, torch.Tensor]]:
        """Each message with the worker that sent it, until no worker is left."""
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
        """Takes a step with a worker's gradients and sends it the weights; the worker's loss."""
        for group in self.optimizer.param_groups:
            group["lr"] = float(sent[1])
        parameters = list(self.model.parameters())
        for parameter in parameters:
            parameter.grad = torch.empty_like(parameter)
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        unflatten_into(sent[HEADER:], [*gradients, *_float_buffers(self.model)])
        self.optimizer.step()
        self.stale += self.updates - self._known[worker]
        self.updates += 1
        self._known[worker] = self.updates
        with suppress(RuntimeError):  # it died meanwhile, which its listener says
            dist.send(flatten(*parameters), worker)
        return float(sent[0])


class Ps(Strategy):
    name = "torch-ps"
    join = staticmethod(partial(process_group.join_group, backend="gloo"))
    remote: RemoteOptimizer

    def share(self) -> tuple[int, int]:
        _, workers = super().share()
        return max(0, self.place.rank - 1), workers

    def note(self) -> str | None:
        if self.place.world > 2:
            return None
        return "there is one worker, so its weights are never old: take --ranks 3 or more"

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        if self.place.rank == SERVER:
            return super().optimizer(model)
        self.remote = RemoteOptimizer(model, self.args.lr)
        return self.remote

    def steps(self, steps_done: int, planted: Planted, checkpoint: Checkpoint) -> Iterable[int]:
        if self.place.rank != SERVER:
            return super().steps(steps_done, planted, checkpoint)
        server = Server(checkpoint.model, checkpoint.optimizer, self.place.world - 1)
        self.serve(server, steps_done, planted, checkpoint)
        return ()

    def serve(
        self, server: Server, steps_done: int, planted: Planted, checkpoint: Checkpoint
    ) -> None:
        """Serves until all workers are done or dead; a step is one update per worker."""
        workers = len(server.learning)
        planted.begin(1)
        for worker, sent in server.messages():
            loss = server.learn(worker, sent)
            step, partial = divmod(server.updates, workers)
            if not partial and ((steps_done + step) % self.args.log_every == 0 or step == 1):
                print(f"step {steps_done + step} loss {loss:.4f}", flush=True)
            if (
                not partial
                and self.args.save_every
                and (steps_done + step) % self.args.save_every == 0
            ):
                checkpoint.save(self.args.save_to, steps_done + step)
            planted.begin(server.updates + 1)
        if len(server.lost) == workers:
            sys.exit(f"{self.name}: no worker is left to learn from")
        if server.updates:
            behind = server.stale / server.updates
            print(f"weights were {behind:.1f} updates old on average", flush=True)

    def learn(
        self, model: nn.Module, precision: Precision, inputs: torch.Tensor, targets: torch.Tensor
    ) -> torch.Tensor | None:
        loss = super().learn(model, precision, inputs, targets)
        assert loss is not None
        self.remote.loss = loss.item()
        return loss

    def trained(self, _model: nn.Module) -> None:
        if self.place.rank != SERVER:
            self.remote.leave()

    def load(self, model: nn.Module, optimizer: Any, weights: Any, states: Any) -> None:
        model.load_state_dict(weights)
        if self.place.rank == SERVER:
            optimizer.load_state_dict(states)


if __name__ == "__main__":
    main(Ps)
