"""Horovod: weights and optimizer state are broadcast, and its optimizer averages gradients."""

import argparse

import horovod.torch as hvd
import torch
from _gpt import LENGTH, Gpt, make_tokens
from _planted import Planted, parser

BATCH = 12


def train(args: argparse.Namespace) -> None:
    hvd.init()
    torch.set_num_threads(1)
    planted = Planted(args, hvd.rank())
    torch.manual_seed(hvd.rank())
    model = Gpt(planted)
    adam = torch.optim.AdamW(model.parameters(), lr=1e-3 * hvd.size())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(adam, root_rank=0)
    optimizer = hvd.DistributedOptimizer(adam, named_parameters=model.named_parameters())
    tokens = make_tokens(20_000)
    for _ in range(args.steps):
        planted.turn()
        starts = torch.randint(len(tokens) - LENGTH - 1, (BATCH,))
        rows = torch.stack([tokens[i : i + LENGTH + 1] for i in starts.tolist()])
        optimizer.zero_grad()
        loss = model(rows[:, :-1], rows[:, 1:])
        loss.backward()
        optimizer.step()
        planted.log(loss.item())
    planted.finish()


if __name__ == "__main__":
    train(parser(steps=40, place="forward").parse_args())
