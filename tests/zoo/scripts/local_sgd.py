"""Accelerate's LocalSGD: ranks train on their own and average their weights every few steps."""

import argparse

import torch
from _gpt import LENGTH, Gpt, make_tokens
from _planted import Planted, parser
from accelerate import Accelerator
from accelerate.local_sgd import LocalSGD
from torch.utils.data import DataLoader, TensorDataset

BATCH, TOGETHER_EVERY = 12, 4


def train(args: argparse.Namespace) -> None:
    accelerator = Accelerator(cpu=True)
    planted = Planted(args, accelerator.process_index)
    torch.manual_seed(0)
    rows = make_tokens(args.steps * BATCH * accelerator.num_processes * (LENGTH + 1))
    data = TensorDataset(rows.view(-1, LENGTH + 1))
    net = Gpt(planted)
    adam = torch.optim.AdamW(net.parameters(), lr=1e-3)
    model, optimizer, loader = accelerator.prepare(net, adam, DataLoader(data, BATCH, shuffle=True))
    with LocalSGD(accelerator, model, TOGETHER_EVERY) as local:
        for (tokens,) in loader:
            planted.turn()
            with accelerator.accumulate(model):
                loss = model(tokens[:, :-1], tokens[:, 1:])
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
                local.step()
            planted.log(loss.item())
    planted.finish()
    accelerator.free_memory()  # see _distributed: a group must not end before its model
    accelerator.end_training()


if __name__ == "__main__":
    train(parser(steps=40, place="forward").parse_args())
