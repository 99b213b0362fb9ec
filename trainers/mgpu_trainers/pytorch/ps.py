"""Training with an asynchronous parameter server: nobody waits for a slower worker.

    python -m mgpu_trainers.apart --ranks 3 mgpu_trainers.pytorch.ps --steps 100

Rank 0 has the weights and the optimizer. Each of the others sends it the gradients of a batch, and
gets the weights as they are then, with what others have learned meanwhile. A worker that dies stops
nobody; without the server nobody learns.
"""

import sys
from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import nn

from mgpu_trainers.faults import Planted
from mgpu_trainers.pytorch.common import place
from mgpu_trainers.pytorch.common.loop import main
from mgpu_trainers.pytorch.common.precision import Precision
from mgpu_trainers.pytorch.common.saving import Run
from mgpu_trainers.pytorch.common.serving import SERVER, Remote, Server
from mgpu_trainers.pytorch.common.strategy import Strategy


class Ps(Strategy):
    name = "torch-ps"
    join = staticmethod(partial(place.joined, backend="gloo"))
    remote: Remote

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
        self.remote = Remote(model, self.args.lr)
        return self.remote

    def steps(self, done: int, planted: Planted, run: Run) -> Iterable[int]:
        if self.place.rank != SERVER:
            return super().steps(done, planted, run)
        self.serve(Server(run.model, run.optimizer, self.place.world - 1), done, planted, run)
        return ()

    def serve(self, server: Server, done: int, planted: Planted, run: Run) -> None:
        """Until all workers are done or gone; a step is as many updates as there are workers."""
        workers = len(server.learning)
        planted.begin(1)
        for worker, sent in server.letters():
            loss = server.learn(worker, sent)
            step, more = divmod(server.updates, workers)
            if not more and ((done + step) % self.args.log_every == 0 or step == 1):
                print(f"step {done + step} loss {loss:.4f}", flush=True)
            if not more and self.args.save_every and (done + step) % self.args.save_every == 0:
                run.save(self.args.save_to, done + step)
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
