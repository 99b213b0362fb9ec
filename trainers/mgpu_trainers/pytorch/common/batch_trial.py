"""Tries batches of the sizes given on standard input, to see which fit.

A process of its own, so that what does not fit ends nothing else. For each size one line of JSON:
`fits`, and if so `seconds` of a step and `bytes` of memory at most so far. The first line, before
any size, is `samples` of the training data.
"""

import argparse
import json
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import default_collate

from mgpu_trainers.pytorch.common import torch_data, torch_models
from mgpu_trainers.pytorch.common.passes import Precision, checkpoint_activations

STEPS = 2
"""Steps of each size: the optimizer allocates its memory in the first."""

COPIES = 2
"""Copies of the weights that data parallelism may hold beyond a single process, as gradients in
transit."""

NO_ROOM = ("can't allocate memory", "not enough memory", "out of memory", "bad_alloc")


class BatchTrial:
    def __init__(self, args: argparse.Namespace) -> None:
        self.device = torch.device(args.device)
        self.precision = Precision(args.precision, self.device, autocasts=True)
        source = torch_data.load_data(args.model)
        self.samples = source.training
        self.model = torch_models.build(args.model, source.classes).to(self.device)
        if args.checkpointing != "none":
            checkpoint_activations(self.model, args.checkpointing)
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.held = [
            torch.ones_like(parameter)
            for parameter in self.model.parameters()
            for _ in range(COPIES)
        ]

    def fits(self, size: int) -> dict[str, Any]:
        try:
            seconds = self._step(size)
        except (RuntimeError, MemoryError) as error:  # of torch's allocators, or Python's
            if isinstance(error, RuntimeError) and not any(
                phrase in str(error) for phrase in NO_ROOM
            ):
                raise
            return {"fits": False}
        return {"fits": True, "seconds": seconds, "bytes": self._most()}

    def _step(self, size: int) -> float:
        """Seconds of the last of a few."""
        indices = [index % len(self.samples) for index in range(size)]
        began = 0.0
        for _ in range(STEPS):
            began = time.perf_counter()
            inputs, targets = default_collate([self.samples[index] for index in indices])
            with self.precision.forward():
                loss = cross_entropy(self.model(inputs.to(self.device)), targets.to(self.device))
            self.precision.backward(loss)
            self.precision.step(self.optimizer)
            self.optimizer.zero_grad()
            loss.item()
        return time.perf_counter() - began

    def _most(self) -> int:
        if self.device.type == "cuda":
            return torch.cuda.max_memory_reserved(self.device)
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def limit_memory(device: str, room: int) -> None:
    """No more than `room` bytes from here on, this process as it is included."""
    if device == "cuda":
        total = torch.cuda.mem_get_info()[1]
        torch.cuda.set_per_process_memory_fraction(min(1.0, room / total))
        return
    status = Path("/proc/self/status").read_text()
    fields = dict(line.split(":", 1) for line in status.splitlines())
    resident, private = (int(fields[name].split()[0]) * 1024 for name in ("VmRSS", "VmData"))
    # Requested memory counts, used or not: the kernel refuses requests beyond the limit.
    limit = private + max(0, room - resident)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def sizes() -> Iterator[int]:
    for line in sys.stdin:
        yield int(line)


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("model", "precision", "checkpointing", "device"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--room", type=int, required=True, help="bytes")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    trial = BatchTrial(args)
    trial._step(1)
    limit_memory(args.device, args.room)
    print_json({"samples": len(trial.samples)})
    for size in sizes():
        print_json(trial.fits(size))


def print_json(reply: dict[str, Any]) -> None:
    print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    main()
