"""FSDP2 over the replicas and tensor parallelism within each, on a two-dimensional device
mesh."""

import argparse

import torch
from _distributed import end, start
from _gpt import LENGTH, Gpt, make_tokens
from _planted import Planted, parser
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

BATCH, DIVIDED = 8, 2


def train(args: argparse.Namespace, rank: int, world: int) -> None:
    planted = Planted(args, rank)
    mesh = init_device_mesh("cpu", (world // DIVIDED, DIVIDED), mesh_dim_names=("data", "model"))
    torch.manual_seed(0)
    model = Gpt(planted)
    plan = {
        "qkv": ColwiseParallel(),
        "project": RowwiseParallel(),
        "up": ColwiseParallel(),
        "down": RowwiseParallel(),
    }
    for block in model.blocks:
        parallelize_module(block, mesh["model"], plan)
        fully_shard(block, mesh=mesh["data"])
    fully_shard(model, mesh=mesh["data"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
    tokens = make_tokens(20_000)
    drawn = torch.Generator().manual_seed(mesh["data"].get_local_rank())
    for _ in range(args.steps):
        planted.turn()
        starts = torch.randint(len(tokens) - LENGTH - 1, (BATCH,), generator=drawn)
        rows = torch.stack([tokens[i : i + LENGTH + 1] for i in starts.tolist()])
        loss = model(rows[:, :-1], rows[:, 1:])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        planted.log(loss.item())
    planted.finish()


if __name__ == "__main__":
    options = parser(steps=40, place="forward").parse_args()
    train(options, *start())
    end()
