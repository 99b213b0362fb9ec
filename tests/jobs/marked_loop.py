"""A loop of numpy alone, in processes that exchange their gradients through pipes. It marks its own
phases and steps. Usage: marked_loop.py RANKS SLOW_RANK STEPS [unmarked]: without marked waits."""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from contextlib import nullcontext
from multiprocessing.connection import Connection
from typing import Any

import mgpu_doctor

WORK, EXCESS = 0.004, 0.006
RANKS, SLOW, STEPS = map(int, sys.argv[1:4])
WAITS = sys.argv[4:] != ["unmarked"]


def average(gradient: Any, pipes: list[Connection]) -> Any:
    """Rank 0 holds a pipe to every other rank; each of these one to rank 0."""
    if len(pipes) > 1 or os.environ["RANK"] == "0":
        total = (gradient + sum(pipe.recv() for pipe in pipes)) / RANKS
        for pipe in pipes:
            pipe.send(total)
        return total
    pipes[0].send(gradient)
    return pipes[0].recv()


def train(rank: int, pipes: list[Connection]) -> None:
    os.environ["RANK"], os.environ["WORLD_SIZE"] = str(rank), str(RANKS)
    import numpy as np

    random = np.random.default_rng(rank)
    weights = np.zeros(64)
    for _ in range(STEPS):
        with mgpu_doctor.phase("input"):
            batch, target = random.normal(size=(32, 64)), random.normal(size=32)
            if rank == SLOW:  # `sleep(0)` would give the core away on a loaded machine
                time.sleep(EXCESS)
        with mgpu_doctor.phase("forward"):
            error = batch @ weights - target
            time.sleep(WORK)
        with mgpu_doctor.phase("backward"):
            gradient = batch.T @ error / 32
        with mgpu_doctor.phase("wait") if WAITS else nullcontext():
            gradient = average(gradient, pipes)
        with mgpu_doctor.phase("optimizer"):
            weights -= 0.01 * gradient
        mgpu_doctor.step()
    print(f"rank {rank}: {STEPS} steps")


if __name__ == "__main__":
    ends = [multiprocessing.Pipe() for _ in range(1, RANKS)]
    pipes = [[mine for mine, _ in ends], *([theirs] for _, theirs in ends)]
    context = multiprocessing.get_context("fork")
    ranks = [context.Process(target=train, args=(rank, pipes[rank])) for rank in range(RANKS)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    sys.exit(max(process.exitcode or 0 for process in ranks))
