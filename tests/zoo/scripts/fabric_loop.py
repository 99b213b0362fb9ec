"""Lightning Fabric: a loop of one's own, whose model, optimizer and loader Fabric sets up.
Gradients accumulate over two batches, of which the first does not synchronise."""

import argparse
import os

import torch
from _gpt import LENGTH, Gpt, make_tokens
from _planted import Planted, parser
from lightning.fabric import Fabric
from torch.utils.data import DataLoader, TensorDataset

BATCH, ACCUMULATE = 8, 2


def train(args: argparse.Namespace) -> None:
    fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp")
    fabric.launch()
    planted = Planted(args, fabric.global_rank)
    fabric.seed_everything(0, verbose=False)
    net = Gpt(planted)

    def watch(_gradient: torch.Tensor) -> None:
        """A hook on a gradient, as users log norms."""
        planted.here("backward")

    def watch_output(_module: object, _inputs: object, hidden: torch.Tensor) -> None:
        if hidden.requires_grad:
            hidden.register_hook(watch)

    net.blocks[1].register_forward_hook(watch_output)
    model, optimizer = fabric.setup(net, torch.optim.AdamW(net.parameters(), lr=1e-3))
    count = args.steps * ACCUMULATE * BATCH * fabric.world_size
    rows = make_tokens(count * (LENGTH + 1)).view(-1, LENGTH + 1)
    loader = fabric.setup_dataloaders(DataLoader(TensorDataset(rows), BATCH, shuffle=True))
    for index, (tokens,) in enumerate(loader):
        if index % ACCUMULATE == 0:
            planted.turn()
        accumulates = index % ACCUMULATE < ACCUMULATE - 1
        with fabric.no_backward_sync(model, enabled=accumulates):
            loss = model(tokens[:, :-1], tokens[:, 1:])
            fabric.backward(loss / ACCUMULATE)
        if not accumulates:
            fabric.clip_gradients(model, optimizer, max_norm=1.0)
            optimizer.step()
            optimizer.zero_grad()
            if planted.turns % 10 == 0:
                planted.log(float(fabric.all_reduce(loss.detach(), reduce_op="mean")))
    planted.finish()


if __name__ == "__main__":
    options = parser(steps=40, place="backward").parse_args()
    options.ms /= ACCUMULATE
    os.environ.setdefault("LOCAL_RANK", "0")
    train(options)
