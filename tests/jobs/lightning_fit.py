"""A LightningModule and `Trainer.fit`: sanity check, validation, logging and checkpoints."""

import os
import sys
import tempfile
from typing import Any

import lightning
import torch
from _rows import loader, options, rows
from _slow import Slow
from no_loader import Net
from torch import nn
from torch.utils.data import DataLoader


class Regression(lightning.LightningModule):  # type: ignore[misc]  # mypy does not read it
    def __init__(self, slow: Slow, accumulate: int) -> None:
        super().__init__()
        self.slow, self.accumulate = slow, accumulate
        self.net = Net(slow)

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        if index % self.accumulate == 0:
            self.slow.turn()
        inputs, targets = batch
        loss = nn.functional.mse_loss(self.net(inputs), targets)
        self.log("loss", loss, prog_bar=True)
        return loss

    def on_train_batch_end(self, *_: Any) -> None:
        self.slow.here("between")

    def validation_step(self, batch: list[torch.Tensor], _: int) -> None:
        inputs, targets = batch
        loss = nn.functional.mse_loss(self.net(inputs), targets)
        self.log("validation_loss", loss, sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        optimizer = torch.optim.Adam(self.parameters(), lr=1e-3)
        self.slow.in_optimizer(optimizer)
        return optimizer


def main() -> None:
    args = options().parse_args()
    rank, world = int(os.environ.get("LOCAL_RANK", "0")), int(os.environ.get("WORLD_SIZE", "2"))
    print(f"rank {rank} of {world} starts", file=sys.stderr)
    slow = Slow(args, rank, parts=args.accumulate)
    data, held_out = rows(args, world)
    with tempfile.TemporaryDirectory() as folder:
        trainer = lightning.Trainer(
            accelerator="cpu",
            devices=world,
            strategy="ddp",
            max_epochs=1,
            accumulate_grad_batches=args.accumulate,
            val_check_interval=30 * args.accumulate if args.validate else None,
            limit_val_batches=1.0 if args.validate else 0,
            log_every_n_steps=10,
            default_root_dir=folder,
        )
        trainer.fit(Regression(slow, args.accumulate), loader(data, slow), DataLoader(held_out, 64))
    if rank == 0:
        print(f"turns {trainer.global_step}", flush=True)


if __name__ == "__main__":
    main()
