"""A DDP job on CPUs whose rank 1 misbehaves as its argument says; its console output is tested.

torchrun --nproc-per-node 2 console_output.py shapes|caught|sleep
"""

import os
import sys
import time
import traceback
from datetime import timedelta

import torch
import torch._dynamo  # before any process group, as in `_slow.py`
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

KIND = sys.argv[1]
RANK = int(os.environ["RANK"])
TIMEOUT = timedelta(seconds=8 if KIND == "sleep" else 100)
"""Where nobody is to be missed, a slow machine may take long to start."""
AT = 3


class Samples(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 40

    def __getitem__(self, _: int) -> torch.Tensor:
        return torch.ones(8)


def strange(step: int) -> None:
    """What is done to rank 1."""
    if KIND == "sleep" and step == AT:
        time.sleep(TIMEOUT.total_seconds() + 3)
    if KIND == "caught" and step == AT:
        try:
            torch.ones(2, 3) @ torch.ones(4, 5)
        except RuntimeError:
            traceback.print_exc()


def main() -> None:
    dist.init_process_group("gloo", timeout=TIMEOUT)
    model = DistributedDataParallel(torch.nn.Linear(8, 2))
    loader = DataLoader(Samples(), 4)
    for step, batch in enumerate(loader):
        if RANK == 1:
            strange(step)
        cut = step == AT and KIND == "shapes"
        loss = model(batch[:, :7] if cut else batch).sum()
        loss.backward()
        print(f"epoch 0 step {step} loss {loss.item():.3f}", flush=True)
    # A model that outlives the group can abort or stand for ever in gloo (torch 2.13).
    del model, loss
    dist.destroy_process_group()


main()
