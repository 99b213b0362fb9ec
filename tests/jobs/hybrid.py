"""Tensor parallel in pairs, sharded data parallel between the pairs: four ranks, two by two."""

import argparse
import sys

import torch
import torch.distributed as dist
from _slow import Slow, parser
from tensor_parallel import ROWS, WIDTH, Net, divided
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

PAIR = 2


def train(args: argparse.Namespace) -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    print(f"rank {rank} of {world} starts", file=sys.stderr)
    torch.manual_seed(0)
    slow = Slow(args, rank)
    model = Net(slow)
    mesh = init_device_mesh("cpu", (world // PAIR, PAIR), mesh_dim_names=("data", "tensor"))
    divided(model, mesh["tensor"])
    for block in model.blocks:
        fully_shard(block, mesh=mesh["data"])
    fully_shard(model, mesh=mesh["data"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
    slow.in_optimizer(optimizer)
    torch.manual_seed(rank // PAIR)

    for step in range(1, args.steps + 1):
        slow.turn()
        slow.here("input")
        x = torch.randn(ROWS, WIDTH)
        loss = nn.functional.mse_loss(model(x), x[:, :1])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        slow.here("between")
        if rank == 0 and step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    if rank == 0:
        print(f"turns {slow.turns}")


def main() -> None:
    args = parser().parse_args()
    dist.init_process_group("gloo")
    train(args)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
