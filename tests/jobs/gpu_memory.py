"""A training loop whose batch takes memory of a pretend GPU (tests/fakenvml), `--mib` a sample."""

import argparse
import os
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.fakenvml.scenarios import MIB, h100

FIXED = 2000
"""MiB of the model, its gradients and its optimizer."""


def occupy(mib: int, others: int) -> None:
    """The GPU shows this process with so much memory, and another one."""
    box = h100(1)
    total = int(box.gpus[0]["mem_total"])
    if (mib + others) * MIB > total:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 GiB.")
    box.gpus[0].proc(os.getpid(), mib * MIB)
    if others:
        box.gpus[0].proc(1, others * MIB)
    box.gpus[0]["mem_used"] = (mib + others) * MIB
    box.write(os.environ["FAKENVML_STATE"])


def main() -> None:
    known = argparse.ArgumentParser(description=__doc__)
    known.add_argument("--batch", type=int, default=8)
    known.add_argument("--mib", type=int, default=7)
    known.add_argument("--others", type=int, default=0)
    args = known.parse_args()
    occupy(FIXED + args.mib * args.batch, args.others)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(5000):
        model(torch.randn(args.batch, 8)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.05)


if __name__ == "__main__":
    main()
