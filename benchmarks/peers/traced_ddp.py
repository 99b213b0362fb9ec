"""`tests/jobs/plain_ddp.py` with the calls that TraceML asks of a plain loop. For its venv."""

import torch
import torch.distributed as dist
import traceml_ai as traceml
from _slow import Slow, parser
from plain_ddp import Blobs, Net, add_options
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, default_collate


def main() -> None:
    args = add_options(parser()).parse_args()
    traceml.init()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    slow = Slow(args, dist.get_rank())

    def collate(samples: list[tuple[torch.Tensor, int]]) -> list[torch.Tensor]:
        slow.here("input")
        return list(default_collate(samples))

    data = Blobs()
    sampler: DistributedSampler[tuple[torch.Tensor, int]] = DistributedSampler(data, seed=1)
    loader = DataLoader(data, args.batch, sampler=sampler, collate_fn=collate)
    model = DistributedDataParallel(Net(args.model, slow))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    slow.in_optimizer(optimizer)
    epoch = 0
    while slow.turns < args.steps:
        sampler.set_epoch(epoch)
        epoch += 1
        for images, labels in loader:
            slow.turn()
            with traceml.trace_step(model):
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(images), labels)
                loss.backward()
                optimizer.step()
                slow.here("between")
            if slow.turns == args.steps:
                break
    del model
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
