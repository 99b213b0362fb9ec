"""Steps of a fraction of a millisecond: a tiny model, with hooks of the script's own."""

import argparse
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from _slow import Slow, parser
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import DataLoader, TensorDataset

FIRST_STEPS = 200
SHORT_NS, LONG_NS = 10_000_000, 20_000_000


def options() -> argparse.ArgumentParser:
    known = parser(steps=2000)
    known.add_argument("--hang-at", type=int, help="the step in which --rank sleeps for ever")
    known.add_argument("--long-from", type=int, help="the step from which all steps take 30 ms")
    known.add_argument("--timeout", type=float, default=60.0, help="of collectives, in seconds")
    return known


class Net(nn.Module):
    def __init__(self, args: argparse.Namespace, slow: Slow) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 4))
        self.slow, self.long_from, self.hang_at = slow, args.long_from, args.hang_at
        if dist.get_rank() != args.rank:
            self.hang_at = None

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        self.slow.here("forward")
        if self.slow.turns == self.hang_at:
            time.sleep(3600)
        if self.long_from is not None and self.slow.turns >= self.long_from:
            time.sleep(0.03)
        return torch.as_tensor(self.layers(rows))


def train(args: argparse.Namespace) -> None:
    # So that the test does not depend on how fast the machine is.
    sampling = sys.modules["_mgpu_probe.step_sampling"]
    vars(sampling).update(FIRST_STEPS=FIRST_STEPS, SHORT_NS=SHORT_NS, LONG_NS=LONG_NS)
    rank = dist.get_rank()
    print(f"rank {rank} of {dist.get_world_size()} starts", file=sys.stderr)
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    slow = Slow(args, rank)
    called: list[str] = []
    register_optimizer_step_post_hook(lambda *_: called.append("first"))
    register_optimizer_step_post_hook(lambda *_: called.append("second"))
    model = DistributedDataParallel(Net(args, slow))
    weight = next(model.parameters())
    view = weight.view_as(weight).grad_fn
    node = view.next_functions[0][0] if view is not None else None
    assert node is not None
    node.register_prehook(lambda *_: called.append("gradient"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(TensorDataset(torch.randn(4096, 32), torch.randint(0, 4, (4096,))), 8)
    while slow.turns < args.steps:
        for rows, labels in loader:
            slow.turn()
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(rows), labels).backward()
            optimizer.step()
            if slow.turns == args.steps:
                break
    in_order = called == ["gradient", "first", "second"] * args.steps
    if rank == 0:
        print(f"turns {slow.turns}, own hooks {'in order' if in_order else 'out of order'}")
    del model, optimizer


def main() -> None:
    args = options().parse_args()
    dist.init_process_group("gloo", timeout=timedelta(seconds=args.timeout))
    train(args)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
