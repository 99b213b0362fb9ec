"""Trains with CUDA graphs in the way that is asked for; prints the losses as a JSON object."""

from __future__ import annotations

import argparse
import json
import os
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.utils.data import DataLoader

STEPS, WIDTH, WARM_UP, CAPTURES = 40, 256, 3, 20


class Training:
    """A model, its optimizer and one batch at a fixed address, as graphs need it."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        layers = [torch.nn.Linear(WIDTH, WIDTH) for _ in range(4)]
        self.model: Any = torch.nn.Sequential(*layers).cuda()
        self.optimizer = torch.optim.Adam(self.model.parameters(), capturable=True)
        self.batch = torch.randn(64, WIDTH, device="cuda")
        self.captured: int | None = None
        """Graphs that another thread has captured meanwhile."""
        self.reduces = False
        """Gradients are reduced over the default process group."""

    def passes(self) -> torch.Tensor:
        """Forward and backward; the loss."""
        loss: torch.Tensor = self.model(self.batch).pow(2).mean()
        loss.backward()
        return loss.detach()

    def step(self) -> torch.Tensor:
        """One whole step; the loss."""
        self.optimizer.zero_grad(set_to_none=False)
        loss = self.passes()
        for parameter in self.model.parameters() if self.reduces else ():
            torch.distributed.all_reduce(parameter.grad)
        self.optimizer.step()
        return loss

    def warm_up(self) -> None:
        """Some steps in another stream, as captures need it."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UP):
                self.step()
        torch.cuda.current_stream().wait_stream(side)


def replay(graph: torch.cuda.CUDAGraph, loss: torch.Tensor) -> torch.Tensor:
    graph.replay()
    return loss.clone()


def capture_whole_steps(training: Training) -> Callable[[], torch.Tensor]:
    training.warm_up()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = training.step()
    return partial(replay, graph, loss)


def capture_passes(training: Training) -> Callable[[], torch.Tensor]:
    """The optimizer steps outside of the graph."""
    training.warm_up()
    graph = torch.cuda.CUDAGraph()
    training.optimizer.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        loss = training.passes()

    def step() -> torch.Tensor:
        value = replay(graph, loss)
        training.optimizer.step()
        return value

    return step


def capture_collectives(training: Training) -> Callable[[], torch.Tensor]:
    """A graph that reduces gradients in a group of one rank."""
    torch.distributed.init_process_group("nccl")
    training.reduces = True
    return capture_whole_steps(training)


def graph_callables(training: Training) -> Callable[[], torch.Tensor]:
    make: Any = torch.cuda.make_graphed_callables
    training.model = make(training.model, (training.batch.clone(),))
    return training.step


def compile_model(training: Training) -> Callable[[], torch.Tensor]:
    training.model = torch.compile(training.model, mode="reduce-overhead")
    return training.step


def capture_in_another_thread(training: Training) -> Callable[[], torch.Tensor]:
    """In the default mode, in which any thread can invalidate a capture."""
    training.warm_up()
    training.captured = 0
    left = threading.Semaphore(0)

    def capture() -> None:
        stream, numbers = torch.cuda.Stream(), torch.ones(64, device="cuda")
        for _ in range(CAPTURES):
            left.acquire()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=stream):
                numbers.add_(1)
            assert training.captured is not None
            training.captured += 1

    thread = threading.Thread(target=capture)
    thread.start()
    steps = 0

    def step() -> torch.Tensor:
        nonlocal steps
        left.release()
        steps += 1
        if steps == STEPS:
            thread.join()
        return training.step()

    return step


WAYS = {
    "whole-step": capture_whole_steps,
    "passes": capture_passes,
    "collectives": capture_collectives,
    "callables": graph_callables,
    "reduce-overhead": compile_model,
    "other-thread": capture_in_another_thread,
}

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("way", choices=WAYS)
    training = Training()
    step = WAYS[parser.parse_args().way](training)
    losses = []
    batches: Any = torch.randn(STEPS, 64, WIDTH, device="cuda")  # pinning can spoil a capture
    for batch in DataLoader(batches, batch_size=None):
        training.batch.copy_(batch)
        losses.append(step())
    report = {
        "rank": 0,
        "losses": [loss.item() for loss in losses],
        "captured": training.captured,
    }
    os.write(1, f"{json.dumps(report)}\n".encode())
