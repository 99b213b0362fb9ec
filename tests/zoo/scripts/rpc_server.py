"""A parameter server over torch.distributed.rpc: trainers send gradients, the server answers with
new weights once all of them have sent theirs."""

import argparse
import os
import threading

import torch
from _gpt import LENGTH, Gpt, make_tokens
from _planted import Planted, parser
from torch.distributed import rpc
from torch.futures import Future

BATCH, SERVER = 12, 0


class Server:
    """Holds the weights and the optimizer."""

    def __init__(self, planted: Planted, trainers: int) -> None:
        torch.manual_seed(0)
        self.model = Gpt(planted)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.trainers = trainers
        self.lock = threading.Lock()
        self.waits: Future[list[torch.Tensor]] = Future()
        self.sent = 0

    def weights(self) -> list[torch.Tensor]:
        return [weight.detach() for weight in self.model.parameters()]

    def add(self, gradients: list[torch.Tensor]) -> Future[list[torch.Tensor]]:
        """The weights, as soon as the gradients of all trainers are here."""
        with self.lock:
            for weight, gradient in zip(self.model.parameters(), gradients, strict=True):
                share = gradient / self.trainers
                weight.grad = share if weight.grad is None else weight.grad + share
            self.sent += 1
            waits = self.waits
            if self.sent == self.trainers:
                self.sent = 0
                self.optimizer.step()
                self.optimizer.zero_grad()
                self.waits = Future()
                waits.set_result(self.weights())
        return waits


SERVERS: list[Server] = []


def fetch() -> list[torch.Tensor]:
    return SERVERS[0].weights()


@rpc.functions.async_execution  # type: ignore[untyped-decorator]
def send(gradients: list[torch.Tensor]) -> Future[list[torch.Tensor]]:
    return SERVERS[0].add(gradients)


def load(model: torch.nn.Module, weights: list[torch.Tensor]) -> None:
    with torch.no_grad():
        for own, weight in zip(model.parameters(), weights, strict=True):
            own.copy_(weight)


def train(planted: Planted, steps: int) -> None:
    model = Gpt(planted)
    load(model, rpc.rpc_sync("server", fetch))
    tokens = make_tokens(20_000)
    drawn = torch.Generator().manual_seed(planted.rank)
    for _ in range(steps):
        planted.turn()
        starts = torch.randint(len(tokens) - LENGTH - 1, (BATCH,), generator=drawn)
        rows = torch.stack([tokens[i : i + LENGTH + 1] for i in starts.tolist()])
        loss = model(rows[:, :-1], rows[:, 1:])
        model.zero_grad()
        loss.backward()
        gradients = [weight.grad for weight in model.parameters()]
        load(model, rpc.rpc_sync("server", send, args=(gradients,)))
        planted.log(loss.item())
    planted.finish()


def main(args: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    planted = Planted(args, rank, reports=1)
    if rank == SERVER:
        SERVERS.append(Server(planted, world - 1))
        rpc.init_rpc("server", rank=rank, world_size=world)
    else:
        rpc.init_rpc(f"trainer{rank}", rank=rank, world_size=world)
        train(planted, args.steps)
    rpc.shutdown()


if __name__ == "__main__":
    main(parser(steps=40, place="forward").parse_args())
