"""Starts and ends the process group of scripts that do it themselves."""

# Loaded here, before any process group: when DistributedDataParallel loads it, it keeps the group
# from ever ending, and a gloo thread that is late can then abort the process at its exit (measured
# with torch 2.13; pytorch issue 190489). For the same reason models are made in functions.
import torch._dynamo
import torch.distributed as dist


def start() -> tuple[int, int]:
    """The rank and the number of ranks."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    return dist.get_rank(), dist.get_world_size()


def end() -> None:
    dist.destroy_process_group()
