"""A recommender whose tables are divided among the ranks. Each rank gets the whole batch, looks it
up in its own tables, exchanges vectors by all-to-all, and goes on with its part of the samples."""

import argparse

import torch
import torch.distributed as dist
from _distributed import end, start
from _planted import Planted, parser
from torch import nn
from torch.distributed.nn.functional import all_to_all_single
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

TABLES, ROWS, WIDTH, DENSE, BATCH = 4, 2000, 16, 12, 256


class Clicks(Dataset[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]):
    """Whole batches, so that the loader's own batch size is None."""

    def __init__(self, batches: int) -> None:
        self.batches = batches

    def __len__(self) -> int:
        return self.batches

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        made = torch.Generator().manual_seed(index)
        dense = torch.rand(BATCH, DENSE, generator=made)
        ids = torch.randint(ROWS, (BATCH, TABLES), generator=made)
        return dense, ids, (dense[:, 0] + ids[:, 0] / ROWS > 1.0).float()


def train(args: argparse.Namespace, rank: int, world: int) -> None:
    planted = Planted(args, rank)
    torch.manual_seed(0)
    tower = DistributedDataParallel(
        nn.Sequential(nn.Linear(DENSE, 512), nn.ReLU(), nn.Linear(512, WIDTH))
    )
    head = DistributedDataParallel(
        nn.Sequential(nn.Linear((TABLES + 1) * WIDTH, 512), nn.ReLU(), nn.Linear(512, 1))
    )
    torch.manual_seed(10 + rank)
    own = range(rank, TABLES, world)
    tables = nn.ModuleList(nn.Embedding(ROWS, WIDTH) for _ in own)
    every = [*tower.parameters(), *head.parameters(), *tables.parameters()]
    optimizer = torch.optim.SGD(every, lr=0.1)
    part = BATCH // world
    for dense, ids, clicked in DataLoader(Clicks(args.steps), batch_size=None):
        planted.turn()
        planted.here("tables")
        mine = slice(rank * part, (rank + 1) * part)
        found = torch.stack([table(ids[:, at]) for at, table in zip(own, tables, strict=True)], 1)
        received = all_to_all_single(torch.empty_like(found), found)
        vectors = received.view(world, part, len(own), WIDTH).transpose(0, 1).flatten(1)
        score = head(torch.cat([tower(dense[mine]), vectors], 1)).squeeze(1)
        loss = nn.functional.binary_cross_entropy_with_logits(score, clicked[mine])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        planted.log(loss.item())
    planted.finish()
    dist.barrier()


if __name__ == "__main__":
    options = parser(steps=60, place="tables").parse_args()
    train(options, *start())
    end()
