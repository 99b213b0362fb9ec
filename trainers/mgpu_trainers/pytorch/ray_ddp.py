"""Data-parallel training with DistributedDataParallel, in workers that Ray Train starts.

    python -m mgpu_trainers.pytorch.ray_cluster --ranks 2 mgpu_trainers.pytorch.ray_ddp --steps 200

Ray makes the process group before this begins, and ends it afterwards.
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist

from mgpu_trainers import catalogue
from mgpu_trainers.pytorch.common.process_group import Place, choose_device
from mgpu_trainers.pytorch.common.torch_loop import train
from mgpu_trainers.pytorch.ddp import Ddp


@contextmanager
def joined_by_ray(name: str, wanted: str, _timeout: float | None) -> Iterator[Place]:
    """A worker of Ray Train; with NCCL each has a GPU of its own."""
    if not dist.is_initialized():
        sys.exit(f"{name}: start it with python -m mgpu_trainers.pytorch.ray_cluster")
    if dist.get_backend() == "nccl":
        from ray.train.torch import get_device

        device = torch.device(get_device())
    else:
        device = choose_device(name, "cpu" if wanted == "auto" else wanted, False, 0)
    yield Place(dist.get_rank(), dist.get_world_size(), device)


class RayDdp(Ddp):
    name = "ray-torch"
    join = staticmethod(joined_by_ray)


def learn(argv: Sequence[str]) -> None:
    """Trains as the options say, in one of the workers."""
    args = catalogue.arguments(catalogue.find(RayDdp.name), argv)
    torch.set_num_threads(args.threads)
    with RayDdp.join(RayDdp.name, args.device, args.timeout) as place:
        train(RayDdp(args, place), args, place)


if __name__ == "__main__":
    learn(sys.argv[1:])
