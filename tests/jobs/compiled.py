"""torch.compile with fullgraph=True around the model; the optimizer's step is compiled too."""

import argparse
import sys

import torch
import torch.distributed as dist
from _slow import Slow, parser
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Net(nn.Module):
    """What is compiled is `body`: nothing but tensors happens in there."""

    def __init__(self, slow: Slow, backend: str) -> None:
        super().__init__()
        self.slow = slow
        body = nn.Sequential(nn.Linear(256, 768), nn.ReLU(), nn.Linear(768, 768), nn.ReLU())
        self.body = torch.compile(body, fullgraph=True, backend=backend)
        self.head = nn.Linear(768, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.slow.in_backward(self.body(x))
        self.slow.here("forward")
        return torch.as_tensor(self.head(hidden))


def train(args: argparse.Namespace) -> None:
    rank = dist.get_rank()
    print(f"rank {rank} of {dist.get_world_size()} starts", file=sys.stderr)
    torch.manual_seed(rank)
    slow = Slow(args, rank)
    model = DistributedDataParallel(Net(slow, args.backend))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    slow.in_optimizer(optimizer)

    @torch.compile(backend=args.backend)
    def update() -> None:
        optimizer.step()

    for step in range(1, args.steps + 1):
        slow.turn()
        slow.here("input")
        x = torch.randn(64, 256)
        loss = nn.functional.mse_loss(model(x), x[:, :1] * 2)
        loss.backward()
        update()
        optimizer.zero_grad()
        slow.here("between")
        if rank == 0 and step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    if rank == 0:
        print(f"turns {slow.turns}")


def main() -> None:
    options = parser()
    options.add_argument("--backend", choices=("eager", "aot_eager", "inductor"), default="eager")
    args = options.parse_args()
    dist.init_process_group("gloo")
    train(args)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
