"""Ranks that join a process group, start a data-loader worker each, report ready, and wait.

python waiting_ranks.py mp|spawn|fork|forkserver file|tcp, or under torchrun. Each rank writes its
pid into the folder $READY.
"""

import multiprocessing
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from _port import free_port
from torch.multiprocessing.spawn import spawn
from torch.utils.data import DataLoader, TensorDataset

RANKS = 2
LONGEST = 240
"""Seconds until all ends by itself."""
SAMPLES = TensorDataset(torch.ones(1000, 1))
READY = Path(os.environ["READY"])


def meet(rank: int, how: str | None, meeting: str | None) -> None:
    signal.alarm(LONGEST)
    dist.init_process_group(
        "gloo", meeting, rank=rank, world_size=int(os.environ.get("WORLD_SIZE", RANKS))
    )
    method = "fork" if how is None else how
    batches = iter(DataLoader(SAMPLES, num_workers=1, multiprocessing_context=method))
    next(batches)
    dist.all_reduce(torch.ones(1))
    (READY / f"ready{rank}").write_text(str(os.getpid()))
    time.sleep(LONGEST)


def place(kind: str) -> str:
    return (READY / "meeting").as_uri() if kind == "file" else f"tcp://localhost:{free_port()}"


def main() -> None:
    how = sys.argv[1]
    if how == "torchrun":
        meet(int(os.environ["RANK"]), None, None)
    elif how == "mp":
        spawn(meet, args=("fork", place(sys.argv[2])), nprocs=RANKS)
    else:
        multiprocessing.set_start_method(how)
        told = (how, place(sys.argv[2]))
        ranks = [multiprocessing.Process(target=meet, args=(rank, *told)) for rank in range(RANKS)]
        for each in ranks:
            each.start()
        for each in ranks:
            each.join()


if __name__ == "__main__":
    main()
