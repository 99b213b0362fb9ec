"""A training step in which two streams compute at the same time; prints how long it takes."""

from __future__ import annotations

import argparse
import json
import os
import sys
from itertools import pairwise
from pathlib import Path
from statistics import median

import torch
from torch.utils.data import DataLoader

sys.path.insert(0, str(Path(__file__).parents[3]))
from tests.gpu.jobs.job_device import open_device

STEPS, WARM_UP, PARTS, MILLISECONDS = 60, 20, 8, 12.0

parser = argparse.ArgumentParser()
parser.add_argument("--device", choices=("pretend", "cuda"), required=True)
parser.add_argument("--build")
options = parser.parse_args()
device = open_device(options.device, options.build)
module = device.module
model = torch.nn.Linear(64, 64).to(device.name)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
side = module.Stream()
ends = []
for batch in DataLoader(torch.randn(STEPS, 8, 64), batch_size=None):  # type: ignore[arg-type]
    side.wait_stream(module.current_stream())
    loss = model(batch.to(device.name, non_blocking=True)).pow(2).mean()
    for _ in range(PARTS):  # queued by turns, as gradients and their reduction are
        device.work(MILLISECONDS / PARTS)
        with module.stream(side):
            device.work(MILLISECONDS / PARTS)
    loss.backward()
    module.current_stream().wait_stream(side)
    optimizer.step()
    optimizer.zero_grad()
    end = module.Event(enable_timing=True)
    end.record(module.current_stream())
    ends.append(end)
module.synchronize()
lengths = [a.elapsed_time(b) for a, b in pairwise(ends[WARM_UP:])]
report = {"rank": 0, "step_ms": median(lengths), "alone_ms": MILLISECONDS}
os.write(1, f"{json.dumps(report)}\n".encode())
