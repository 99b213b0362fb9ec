"""Pairs of ranks reduce in a compiled forward pass; DistributedDataParallel reduces over all."""

import argparse

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from _loop import WIDTH, loop, start
from _slow import Slow, parser
from torch import nn
from torch.nn.parallel import DistributedDataParallel

PAIR = 2


class Net(nn.Module):
    def __init__(self, slow: Slow, pair: dist.ProcessGroup, backend: str) -> None:
        super().__init__()
        self.slow = slow
        self.pair = pair
        self.first = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, 1)
        self.reduced = torch.compile(self.reduce, backend=backend, fullgraph=True)

    def reduce(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.first(x))
        total = functional.all_reduce(hidden.detach(), "sum", self.pair)
        mixed: torch.Tensor = hidden + total / PAIR
        return mixed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.slow.here("forward")
        return torch.as_tensor(self.head(self.reduced(x)))


def train(args: argparse.Namespace) -> None:
    slow = start(args)
    pairs = [dist.new_group([first, first + 1]) for first in range(0, dist.get_world_size(), PAIR)]
    net = Net(slow, pairs[dist.get_rank() // PAIR], args.backend)
    model = DistributedDataParallel(net)
    loop(args.steps, slow, model, torch.optim.SGD(model.parameters(), lr=1e-3))


def main() -> None:
    options = parser()
    options.add_argument("--backend", choices=("eager", "aot_eager", "inductor"), default="eager")
    args = options.parse_args()
    dist.init_process_group("gloo")
    train(args)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
