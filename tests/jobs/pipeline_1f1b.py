"""A pipeline by torch.distributed.pipelining: a stage a rank, one forward, one backward (1F1B).

With --replicas the ranks form several such pipelines, whose equal stages average their gradients.
With --uneven each stage, or each replica, has more or less to do from step to step.
"""

import argparse
import random
import sys

import torch
import torch.distributed as dist
from _slow import Slow, burn, parser
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

ROWS, WIDTH, DEPTH = 128, 256, 2


class Sizes:
    """Work that differs by the data: seconds of a micro-batch's forward pass, drawn anew for each
    step. Backward takes as long."""

    def __init__(self, args: argparse.Namespace, seed: int) -> None:
        self.most = args.most / 1000 / args.micro_batches if args.uneven != "none" else 0.0
        self.random = random.Random(seed)
        self.seconds = 0.0

    def draw(self) -> None:
        self.seconds = self.most * self.random.random()

    def work(self, _gradient: torch.Tensor | None = None) -> None:
        if self.seconds:
            burn(self.seconds)


class Stage(nn.Module):
    def __init__(self, slow: Slow, sizes: Sizes) -> None:
        super().__init__()
        self.slow = slow
        self.sizes = sizes
        self.layers = nn.Sequential(
            *(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(DEPTH))
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.slow.in_backward(self.layers(x))
        self.sizes.work()
        if hidden.requires_grad:
            hidden.register_hook(self.sizes.work)
        self.slow.here("forward")
        return hidden


def train(args: argparse.Namespace) -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    print(f"rank {rank} of {world} starts", file=sys.stderr)
    shape = (args.replicas, world // args.replicas)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("data", "pipe"))
    number, stages = mesh["pipe"].get_local_rank(), shape[1]
    torch.manual_seed(number)
    slow = Slow(args, rank, parts=args.micro_batches)
    sizes = Sizes(args, rank if args.uneven == "stages" else rank // stages)
    model = Stage(slow, sizes)
    stage = PipelineStage(model, number, stages, torch.device("cpu"), group=mesh.get_group("pipe"))
    schedule = Schedule1F1B(stage, args.micro_batches, loss_fn=nn.functional.mse_loss)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    slow.in_optimizer(optimizer)
    torch.manual_seed(rank // stages)

    for step in range(1, args.steps + 1):
        slow.turn()
        slow.here("input")
        sizes.draw()
        x = torch.randn(ROWS, WIDTH)
        losses: list[torch.Tensor] = []
        if number == 0:
            schedule.step(x)
        elif number == stages - 1:
            schedule.step(target=x, losses=losses)
        else:
            schedule.step()
        if args.replicas > 1:
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad, group=mesh.get_group("data"))
        optimizer.step()
        optimizer.zero_grad()
        slow.here("between")
        if losses and step % 10 == 0:
            print(f"step {step} loss {losses[-1].item():.4f}", flush=True)
    if rank == 0:
        print(f"turns {slow.turns}")


def main() -> None:
    options = parser()
    options.add_argument("--replicas", type=int, default=1)
    options.add_argument("--micro-batches", type=int, default=4)
    options.add_argument("--uneven", choices=("none", "stages", "replicas"), default="none")
    options.add_argument("--most", type=float, default=40.0, help="ms of a pass, the most")
    args = options.parse_args()
    dist.init_process_group("gloo")
    train(args)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
