"""Tensor parallel in pairs, sharded data parallel between the pairs: four ranks, two by two."""

import argparse

import torch
import torch.distributed as dist
from _loop import loop, main, start
from tensor_parallel import Net, divided
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

PAIR = 2


def train(args: argparse.Namespace) -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    slow = start(args)
    model = Net(slow)
    mesh = init_device_mesh("cpu", (world // PAIR, PAIR), mesh_dim_names=("data", "tensor"))
    divided(model, mesh["tensor"])
    for block in model.blocks:
        fully_shard(block, mesh=mesh["data"])
    fully_shard(model, mesh=mesh["data"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
    torch.manual_seed(rank // PAIR)
    loop(args.steps, slow, model, optimizer)


if __name__ == "__main__":
    main(train)
