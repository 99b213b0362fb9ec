"""DistributedDataParallel with settings that cost time, on loopback or on a simulated slow link.

`--link` makes each bucket take as long as its bytes would at so many MiB/s, one bucket at a time,
without using a core: loopback alone cannot show what a network does.
"""

import argparse
import queue
import sys
import threading
import time
from contextlib import nullcontext

import torch
import torch.distributed as dist
from _slow import Slow, parser
from torch import nn
from torch._C._distributed_c10d import GradBucket
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel


class Net(nn.Module):
    """Equal layers, so that gradients become ready evenly. With `--branches`, layers without
    arithmetic make the autograd graph long, as many small operations do in real models. With
    `--kept`, there is an output that the loss does not use, whose graph is as long."""

    scale: torch.Tensor

    def __init__(self, args: argparse.Namespace, slow: Slow) -> None:
        super().__init__()
        self.slow = slow
        self.branches = args.branches
        self.layers = nn.ModuleList(nn.Linear(args.width, args.width) for _ in range(args.layers))
        self.spare = nn.Linear(args.width, args.width) if args.spare else None
        self.spare_every = args.spare
        self.passes = 0
        if args.buffer_mib:
            self.register_buffer("table", torch.zeros(args.buffer_mib * 2**18))
        self.scales = args.scales
        if args.scales:  # what rank 0 learns, and the others are sent
            self.register_buffer("scale", torch.ones(1))
        self.kept = torch.zeros(1, requires_grad=args.kept > 0)
        for _ in range(args.kept):
            self.kept = self.kept.view_as(self.kept)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.passes += 1
        x = self.slow.in_backward(x)
        for layer in self.layers:
            x = torch.relu(layer(x))
        self.slow.here("forward")
        if self.spare is not None and self.passes % self.spare_every:
            x = self.spare(x)
        if self.scales:
            x = x * self.scale.clone()
            if dist.get_rank() == 0:
                self.scale += 0.01
        for _ in range(self.branches):
            x = x[:, :1] + x if self.branches % 2 else x.view_as(x)
        return x.square().mean(), self.kept


class Link:
    """A communication hook: the gradients arrive when the pretended link has moved them."""

    def __init__(self, bytes_per_second: float, latency: float) -> None:
        self.bytes_per_second, self.latency = bytes_per_second, latency
        self.buckets: queue.SimpleQueue[tuple[dist.Work, torch.Tensor, Future[torch.Tensor]]] = (
            queue.SimpleQueue()
        )
        threading.Thread(target=self.move, daemon=True).start()

    def hook(self, _: object, bucket: GradBucket) -> Future[torch.Tensor]:
        gradients = bucket.buffer().div_(dist.get_world_size())
        moved: Future[torch.Tensor] = Future()
        work = dist.all_reduce(gradients, async_op=True)
        assert work is not None
        self.buckets.put((work, gradients, moved))
        return moved

    def move(self) -> None:
        while True:
            work, gradients, moved = self.buckets.get()
            work.wait()
            time.sleep(self.latency + gradients.nbytes / self.bytes_per_second)
            moved.set_result(gradients)


def move_at_once(_: object, bucket: GradBucket) -> Future[torch.Tensor]:
    """A communication hook of a link that takes no time: what is left is the work of each rank."""
    moved: Future[torch.Tensor] = Future()
    moved.set_result(bucket.buffer())
    return moved


def train(args: argparse.Namespace) -> None:
    rank = dist.get_rank()
    torch.manual_seed(rank)
    slow = Slow(args, rank, parts=args.accumulate)
    model = DistributedDataParallel(
        Net(args, slow),
        bucket_cap_mb=args.buckets,
        find_unused_parameters=args.find_unused,
        gradient_as_bucket_view=args.bucket_view,
        static_graph=args.static,
        broadcast_buffers=not args.local_buffers,
    )
    if args.link:
        model.register_comm_hook(None, Link(args.link * 2**20, args.latency_ms / 1000).hook)
    if args.at_once:
        model.register_comm_hook(None, move_at_once)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x = torch.randn(args.batch, args.width)
    began = time.perf_counter()
    for step in range(1, args.steps + 1):
        slow.turn()
        for micro in range(1, args.accumulate + 1):
            last = micro == args.accumulate
            with model.no_sync() if args.no_sync and not last else nullcontext():
                loss = model(x)[0] / args.accumulate
                loss.backward()
        optimizer.step()
        if args.detach:
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter.grad.detach_()
        optimizer.zero_grad()
        if args.barrier:
            dist.barrier()
        if args.log_every_step:
            total = loss.detach().clone()
            dist.all_reduce(total)
        slow.here("between")
        if step == args.steps // 5:
            began = time.perf_counter()
    if rank == 0:
        taken = (time.perf_counter() - began) / (args.steps - args.steps // 5)
        print(f"{taken * 1e3:.3f} ms a step", file=sys.stderr)
        print(f"turns {slow.turns}")


def options() -> argparse.ArgumentParser:
    known = parser()
    known.add_argument("--layers", type=int, default=8)
    known.add_argument("--width", type=int, default=512)
    known.add_argument("--batch", type=int, default=64)
    known.add_argument("--buckets", type=float, help="bucket_cap_mb")
    known.add_argument("--find-unused", action="store_true")
    known.add_argument("--spare", type=int, default=0, help="a layer that every n-th pass skips")
    known.add_argument("--branches", type=int, default=0)
    known.add_argument("--kept", type=int, default=0)
    known.add_argument("--accumulate", type=int, default=1)
    known.add_argument("--no-sync", action="store_true")
    known.add_argument("--barrier", action="store_true")
    known.add_argument("--log-every-step", action="store_true")
    known.add_argument("--link", type=float, default=0.0, help="MiB/s; 0: loopback as it is")
    known.add_argument("--latency-ms", type=float, default=0.0, help="of the link, for each bucket")
    known.add_argument("--at-once", action="store_true", help="exchange nothing")
    known.add_argument("--bucket-view", action="store_true")
    known.add_argument("--static", action="store_true")
    known.add_argument("--detach", action="store_true", help="gradients, in place")
    known.add_argument("--buffer-mib", type=int, default=0)
    known.add_argument("--local-buffers", action="store_true")
    known.add_argument("--scales", action="store_true", help="a buffer that rank 0 alone changes")
    return known


def main() -> None:
    args = options().parse_args()
    dist.init_process_group("gloo")
    train(args)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
