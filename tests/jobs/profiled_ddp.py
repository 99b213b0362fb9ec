"""A small DDP job on CPUs under torch's profiler; one rank may be slow."""

import argparse
import time

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, schedule

parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True)
parser.add_argument("--slow", type=int, default=-1)
parser.add_argument("--steps", type=int, default=20)
chosen = parser.parse_args()

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
inner = torch.nn.Sequential(torch.nn.Linear(128, 128), torch.nn.ReLU(), torch.nn.Linear(128, 8))
model = torch.nn.parallel.DistributedDataParallel(inner)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
plan = schedule(wait=1, warmup=2, active=chosen.steps)
with profile(activities=[ProfilerActivity.CPU], schedule=plan) as profiler:
    for _ in range(3 + chosen.steps):
        if rank == chosen.slow:
            time.sleep(0.08)
        optimizer.zero_grad()
        model(torch.randn(32, 128)).sum().backward()
        optimizer.step()
        profiler.step()
profiler.export_chrome_trace(f"{chosen.out}/rank{rank}.json.gz")
dist.destroy_process_group()
