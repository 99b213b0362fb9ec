"""DistributedDataParallel over a pretended slow link.

It is a process group of its own on top of gloo, so it also takes what communication hooks exchange.
Each reduction takes as long as its bytes would at so many MiB/s, one at a time, without using a
core.
"""

import argparse
import queue
import threading
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._C import _distributed_c10d as c10d
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel


class SlowLink(dist.ProcessGroup):
    """Slow reductions; everything else goes through gloo as it is."""

    def __init__(self, gloo: Any, rank: int, world: int, bytes_per_second: float) -> None:
        super().__init__(rank, world)  # type: ignore[call-arg]
        self.gloo, self.bytes_per_second = gloo, bytes_per_second
        self.moving: queue.SimpleQueue[tuple[Any, list[torch.Tensor], Future[Any]]] = (
            queue.SimpleQueue()
        )
        threading.Thread(target=self.move, daemon=True).start()

    def move(self) -> None:
        while True:
            work, tensors, moved = self.moving.get()
            work.wait()
            time.sleep(sum(tensor.nbytes for tensor in tensors) / self.bytes_per_second)
            # What waits for it may reduce something else first, so not in this thread.
            threading.Thread(target=moved.set_result, args=(tensors,)).start()

    def allreduce(  # type: ignore[override]
        self, tensors: list[torch.Tensor], *options: Any
    ) -> Any:
        moved: Future[Any] = Future()
        self.moving.put((self.gloo.allreduce(tensors, *options), tensors, moved))
        return c10d._create_work_from_future(moved)  # type: ignore[attr-defined]

    def broadcast(self, *arguments: Any) -> Any:
        return self.gloo.broadcast(*arguments)

    def allgather(self, *arguments: Any) -> Any:
        return self.gloo.allgather(*arguments)

    def barrier(self, *arguments: Any) -> Any:
        return self.gloo.barrier(*arguments)

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        return "slow-link"


def train(args: argparse.Namespace) -> None:
    torch.manual_seed(0)
    layers = (nn.Linear(args.width, args.width) for _ in range(args.layers))
    model = DistributedDataParallel(nn.Sequential(*layers))
    if args.fp16:
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    if args.low_rank:
        state = powerSGD_hook.PowerSGDState(None, args.low_rank, start_powerSGD_iter=10)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.rate)
    torch.manual_seed(dist.get_rank())
    for _ in range(args.steps):
        x = torch.randn(args.batch, args.width)
        loss = model(x).square().mean() * args.scale
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(args.step_ms / 1000)


def main() -> None:
    known = argparse.ArgumentParser(description=__doc__)
    for name, default in (
        ("steps", 5000), ("layers", 4), ("width", 256), ("batch", 8), ("low-rank", 0),
    ):  # fmt: skip
        known.add_argument(f"--{name}", type=int, default=default)
    for name, value in (("link", 20.0), ("step-ms", 0.0), ("rate", 1e-3), ("scale", 1.0)):
        known.add_argument(f"--{name}", type=float, default=value)
    known.add_argument("--fp16", action="store_true")
    args = known.parse_args()

    def connect(store: Any, rank: int, world: int, timeout: timedelta) -> SlowLink:
        gloo = dist.ProcessGroupGloo(store, rank, world, timeout)
        return SlowLink(gloo, rank, world, args.link * 2**20)

    dist.Backend.register_backend("slowlink", connect, devices=["cpu"])
    dist.init_process_group("slowlink")
    train(args)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
