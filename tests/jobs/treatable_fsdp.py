"""Fully sharded data parallel whose time is mostly the gathering of parameters, or sleep."""

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def slow_down(gather: Callable[..., Any], seconds: float) -> Callable[..., Any]:
    """The same over a pretended link that takes so long for each gathering."""

    def gather_slowly(*args: Any, **options: Any) -> Any:
        time.sleep(seconds)
        return gather(*args, **options)

    return gather_slowly


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
    for name in ("step-ms", "link-ms"):
        known.add_argument(f"--{name}", type=float, default=0.0)
    known.add_argument("--keep", action="store_true")
    args = known.parse_args()
    for name in ("all_gather_single", "all_gather_into_tensor"):  # since 2.13; before
        if args.link_ms and hasattr(dist, name):
            setattr(dist, name, slow_down(getattr(dist, name), args.link_ms / 1000))
    dist.init_process_group("gloo")
    train(args)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
