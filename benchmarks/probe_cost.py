"""What the probe costs a rank: microseconds per step, in paired blocks.

    python -m benchmarks.probe_cost [--blocks 20] [--steps 1000] [--busy]

Three processes run the same data-parallel loop (loader, forward, backward, optimizer) in turn,
never at once: one bare, one under the probe, and one under the probe that times every step. Each
block of one is compared with the neighbouring block of the others, so that a machine that drifts
slows all. The process group is torch's `fake` one of two ranks: all hooks of a distributed step
run, without waiting for other ranks.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.support import machine

WARM_UP = 1500
"""Steps before the first block: the probe times all of the first 1000 (`step_sampling`)."""
INJECT = Path(__file__).parents[1] / "probes/mgpu_probes/inject"


class Loop:
    """A process that runs blocks of steps when asked."""

    def __init__(self, boxes: str | None, *options: str) -> None:
        environment = dict(os.environ, OMP_NUM_THREADS="1", RANK="0", WORLD_SIZE="2")
        environment.pop("MGPU_DOCTOR_BOXES", None)
        if boxes is not None:
            environment |= {"MGPU_DOCTOR_BOXES": boxes, "PYTHONPATH": str(INJECT)}
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--loop", *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def block(self, steps: int) -> tuple[float, float]:
        """Wall and CPU seconds a step."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{steps}\n")
        self.process.stdin.flush()
        wall, cpu = self.process.stdout.readline().split()
        return float(wall) / steps, float(cpu) / steps

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def loop(*, times_all: bool, busy: bool) -> None:
    """The inner process: an ordinary training loop, in blocks."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    from torch.testing._internal.distributed.fake_pg import FakeStore
    from torch.utils.data import DataLoader, TensorDataset

    torch.set_num_threads(1)
    sampling: Any = sys.modules.get("_mgpu_probe.step_sampling")
    if sampling is not None and times_all:
        sampling.FIRST_STEPS = sys.maxsize
    if sampling is not None and busy:
        sampling.SHORT_NS = sampling.LONG_NS = sys.maxsize
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    model = DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    )

    def reduced(_: object, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    # torch checks the annotations themselves, which are text in this file
    reduced.__annotations__ = {"return": torch.futures.Future[torch.Tensor]}
    model.register_comm_hook(None, reduced)  # the fake group's own all-reduce gives no result
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = TensorDataset(torch.randn(4096, 32), torch.randint(0, 10, (4096,)))
    batches = iter(DataLoader(data, batch_size=8))
    for line in sys.stdin:
        wall, cpu = time.perf_counter(), time.process_time()
        for _ in range(int(line)):
            batch = next(batches, None)
            if batch is None:
                batches = iter(DataLoader(data, batch_size=8))
                batch = next(batches)
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(batch[0]), batch[1])
            loss.backward()
            optimizer.step()
        print(time.perf_counter() - wall, time.process_time() - cpu, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--blocks", type=int, default=20)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument(
        "--busy", action="store_true", help="steps are short even if other programs delay them"
    )
    parser.add_argument("--loop", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--time-all", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.loop:
        loop(times_all=args.time_all, busy=args.busy)
        return
    print(machine())
    with tempfile.TemporaryDirectory(prefix="mgpu-doctor-bench-") as boxes:
        busy = ("--busy",) if args.busy else ()
        probed, timed = Loop(f"{boxes}/probed", *busy), Loop(f"{boxes}/all", "--time-all")
        loops = (Loop(None), probed, timed)
        for warmed in loops:
            warmed.block(WARM_UP)
        rounds = [[each.block(args.steps) for each in loops] for _ in range(args.blocks)]
        for each in loops:
            each.end()
    for index, measure in enumerate(("wall", "CPU")):
        base = [1e6 * times[0][index] for times in rounds]
        print(f"{measure:4}  bare {statistics.median(base):.0f} µs a step")
        for place, name in enumerate(("the probe", "the probe, if it times all steps,"), 1):
            added = [1e6 * (times[place][index] - times[0][index]) for times in rounds]
            low, median, high = statistics.quantiles(added, n=4)
            print(f"      {name} adds {median:.1f} µs (quartiles {low:.1f} … {high:.1f})")


if __name__ == "__main__":
    main()
