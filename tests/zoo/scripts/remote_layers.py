"""One model on two processes over torch.distributed.rpc: the tables lie with the keeper, the
trainer holds the layers between. `torch.distributed.autograd` and `DistributedOptimizer` train
both."""

import argparse
import os

import torch
from _planted import Planted, parser
from torch import nn
from torch.distributed import autograd, rpc
from torch.distributed.optim import DistributedOptimizer

TOKENS, WIDTH, LENGTH, BATCH, KEEPER = 512, 64, 16, 8, 0


class Tables(nn.Module):
    """What the keeper holds: the tokens' vectors, and the way back to tokens."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.vectors = nn.Embedding(TOKENS, WIDTH)
        self.back = nn.Linear(WIDTH, TOKENS)

    def look_up(self, tokens: torch.Tensor) -> torch.Tensor:
        vectors: torch.Tensor = self.vectors(tokens)
        return vectors

    def read_out(self, states: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.back(states)
        return logits

    def references(self) -> "list[rpc.RRef[torch.Tensor]]":
        return [rpc.RRef(weight) for weight in self.parameters()]


def train(planted: Planted, steps: int) -> None:
    tables = rpc.remote("keeper", Tables)
    torch.manual_seed(1)
    layers = nn.GRU(WIDTH, WIDTH, num_layers=2, batch_first=True)
    own = [rpc.RRef(weight) for weight in layers.parameters()]
    every = [*tables.rpc_sync().references(), *own]
    optimizer = DistributedOptimizer(torch.optim.Adagrad, every, lr=0.05)
    for number in range(steps):
        planted.turn()
        starts = torch.randint(TOKENS, (BATCH, 1), generator=torch.Generator().manual_seed(number))
        rows = (starts + 3 * torch.arange(LENGTH + 1)) % TOKENS
        with autograd.context() as context:
            states, _ = layers(tables.rpc_sync().look_up(rows[:, :-1]))
            planted.here("forward")
            logits = tables.rpc_sync().read_out(states)
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
            autograd.backward(context, [loss])  # type: ignore[attr-defined]
            optimizer.step(context)
        planted.log(loss.item())
    planted.finish()


def main(args: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    planted = Planted(args, rank, reports=1)
    rpc.init_rpc("keeper" if rank == KEEPER else "trainer", rank=rank, world_size=world)
    if rank != KEEPER:
        train(planted, args.steps)
    rpc.shutdown()


if __name__ == "__main__":
    main(parser(steps=40, place="forward").parse_args())
