"""torch.compile for fixed shapes; with --every the batch grows after so many steps."""

import argparse
import sys

import torch
import torch.distributed as dist
from _slow import Slow, parser
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WIDTH = 256
KEPT_BY_DYNAMO = 64


class Net(nn.Module):
    """What is compiled is `body`: nothing but tensors happens in there."""

    def __init__(self, slow: Slow, backend: str) -> None:
        super().__init__()
        self.slow = slow
        body = nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(4)))
        self.body = torch.compile(body, backend=backend, dynamic=False)
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.slow.in_backward(self.body(x))
        self.slow.here("forward")
        return torch.as_tensor(self.head(hidden))


def train(args: argparse.Namespace) -> None:
    rank = dist.get_rank()
    print(f"rank {rank} of {dist.get_world_size()} starts", file=sys.stderr)
    limits = ("recompile_limit", "cache_size_limit")  # torch 2.6 and later, and before
    name = next(name for name in limits if hasattr(torch._dynamo.config, name))
    setattr(torch._dynamo.config, name, KEPT_BY_DYNAMO)
    torch.manual_seed(0)
    slow = Slow(args, rank)
    model = DistributedDataParallel(Net(slow, args.backend))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    slow.in_optimizer(optimizer)
    torch.manual_seed(rank)
    for step in range(1, args.steps + 1):
        slow.turn()
        slow.here("input")
        grows = args.every and args.who in (rank, -1)
        longer = step // args.every if grows else 0
        x = torch.randn(64 + longer, WIDTH)
        loss = nn.functional.mse_loss(model(x), x[:, :1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        slow.here("between")
        if rank == 0 and step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    if rank == 0:
        print(f"turns {slow.turns}")


def main() -> None:
    options = parser()
    options.add_argument("--every", type=int, help="the batch is larger after so many turns")
    options.add_argument(
        "--who", type=int, default=-1, help="whose batch grows; -1 is every rank's"
    )
    options.add_argument("--backend", choices=("eager", "aot_eager"), default="aot_eager")
    args = options.parse_args()
    dist.init_process_group("gloo")
    train(args)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
