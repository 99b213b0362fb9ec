"""A pre-training loop in several rooms, as large-model repositories have it: a model that is made
without memory and then initialised, activation checkpointing and FSDP2 for each block, tokens
from an iterable data set, garbage collection by hand, a distributed checkpoint, metrics now and
then."""

import argparse
import gc
import tempfile
from collections.abc import Iterator

import torch
import torch.distributed as dist
from _distributed import end, start
from _gpt import LENGTH, Gpt, make_tokens
from _planted import Planted, parser
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, IterableDataset

BATCH, COLLECT_EVERY, SAVE_AT = 8, 10, 20


class Documents(IterableDataset[torch.Tensor]):
    """Sequences that are cut out of documents as they come, of each rank its own."""

    def __init__(self, planted: Planted, world: int) -> None:
        self.planted = planted
        self.world = world

    def __iter__(self) -> Iterator[torch.Tensor]:
        document = self.planted.rank
        while True:
            tokens = make_tokens((LENGTH + 1) * BATCH, seed=document)
            self.planted.here("tokenize")
            yield from tokens.split(LENGTH + 1)
            document += self.world


class Collector:
    """Collects garbage on all ranks in the same steps."""

    def __init__(self) -> None:
        gc.disable()
        gc.collect(1)

    def run(self, step: int) -> None:
        if step % COLLECT_EVERY == 0:
            gc.collect(1)


def make_model(planted: Planted, world: int) -> nn.Module:
    with torch.device("meta"):
        model = Gpt(planted)
    mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("shard",))
    for number, block in enumerate(model.blocks):
        wrapped = checkpoint_wrapper(block)
        model.blocks[number] = wrapped
        fully_shard(wrapped, mesh=mesh)
    fully_shard(model, mesh=mesh)
    model.to_empty(device="cpu")
    torch.manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                nn.init.normal_(weight, std=0.02)
            else:
                nn.init.zeros_(weight)
        for module in model.modules():
            if isinstance(module, nn.LayerNorm):
                nn.init.ones_(module.weight)
    return model


def train(args: argparse.Namespace, rank: int, world: int) -> None:
    planted = Planted(args, rank)
    model = make_model(planted, world)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    batches = iter(DataLoader(Documents(planted, world), BATCH))
    collector = Collector()
    for step in range(1, args.steps + 1):
        planted.turn()
        collector.run(step)
        rows = next(batches)
        optimizer.zero_grad()
        loss = model(rows[:, :-1], rows[:, 1:])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 10 == 0:
            mean = loss.detach().clone()
            dist.all_reduce(mean, dist.ReduceOp.AVG)
            planted.log(mean.item())
        if step == SAVE_AT:
            weights, states = get_state_dict(model, optimizer)
            with tempfile.TemporaryDirectory() as folder:
                shared = [folder]
                dist.broadcast_object_list(shared)
                save({"model": weights, "optimizer": states}, checkpoint_id=shared[0])
                dist.barrier()
    planted.finish()


if __name__ == "__main__":
    options = parser(steps=40, place="tokenize").parse_args()
    train(options, *start())
    end()
