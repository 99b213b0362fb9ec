"""Processes that update one model in shared memory, each when it likes: no process group."""

import argparse
import os
import signal
import sys
import threading
import time
from itertools import chain, islice, repeat

import torch
from torch import multiprocessing, nn
from torch.utils.data import DataLoader, TensorDataset

FAULTS = ("none", "slow", "exception", "killed", "stopped", "asleep", "locked")


def train(number: int, model: nn.Module, args: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(number)
    print(f"process {number} is {os.getpid()}", flush=True)
    inputs = torch.randn(32 * min(args.steps, 1000), 64)
    loader = DataLoader(TensorDataset(inputs, inputs[:, :1] * 2), batch_size=32, shuffle=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    place = args.fault if number == args.process else "none"
    epochs = chain.from_iterable(repeat(loader))
    for step, (batch, wanted) in enumerate(islice(epochs, args.steps)):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(batch), wanted)
        if place == "slow":
            time.sleep(0.04)
        if step == (args.at or args.steps // 2):
            if place == "exception":
                raise RuntimeError("no such label")
            if place in ("killed", "stopped"):
                os.kill(os.getpid(), signal.SIGKILL if place == "killed" else signal.SIGSTOP)
            if place == "asleep":
                time.sleep(10**6)
            if place == "locked":
                lock = threading.Lock()
                lock.acquire()
                lock.acquire()
        loss.backward()
        optimizer.step()
        time.sleep(args.ms / 1000)


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--processes", type=int, default=2)
    options.add_argument("--steps", type=int, default=60, help="of each process")
    options.add_argument("--ms", type=float, default=20.0, help="rest after each step")
    options.add_argument("--fault", choices=FAULTS, default="none")
    options.add_argument("--at", type=int, help="step of the fault; else the middle one")
    options.add_argument("--process", type=int, default=1, help="which one has the fault")
    args = options.parse_args()
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1)).share_memory()
    context = multiprocessing.get_context("spawn")
    workers = [
        context.Process(target=train, args=(number, model, args))
        for number in range(args.processes)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    sys.exit(0)


if __name__ == "__main__":
    main()
