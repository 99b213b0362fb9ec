"""Fully sharded data parallel whose time is mostly the gathering of parameters, or sleep."""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def train(args: argparse.Namespace) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(args.width, args.width) for _ in range(args.layers)))
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    reshard = False if args.keep else None
    for layer in model:
        fully_shard(layer, mesh=mesh, reshard_after_forward=reshard)
    fully_shard(model, mesh=mesh, reshard_after_forward=reshard)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    torch.manual_seed(dist.get_rank())
    for _ in range(args.steps):
        loss = model(torch.randn(args.batch, args.width)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(args.step_ms / 1000)


def main() -> None:
    known = argparse.ArgumentParser(description=__doc__)
    for name, default in (("steps", 5000), ("layers", 8), ("width", 1024), ("batch", 1)):
        known.add_argument(f"--{name}", type=int, default=default)
    known.add_argument("--step-ms", type=float, default=0.0)
    known.add_argument("--keep", action="store_true")
    args = known.parse_args()
    dist.init_process_group("gloo")
    train(args)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
