"""A LightningModule with a data module, a schedule, logged metrics, a validation and
checkpoints."""

import argparse
import os
import tempfile
from typing import Any

import lightning
import torch
from _gpt import LENGTH, Gpt, make_tokens
from _planted import Planted, parser
from lightning.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import DataLoader, TensorDataset, default_collate

BATCH = 12


class Language(lightning.LightningModule):  # type: ignore[misc]  # mypy does not read it
    def __init__(self, planted: Planted, steps: int) -> None:
        super().__init__()
        self.planted, self.steps = planted, steps
        self.net = Gpt(planted)

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        self.planted.turn()
        (tokens,) = batch
        loss = self.net(tokens[:, :-1], tokens[:, 1:])
        self.log("loss", loss, prog_bar=True)
        return torch.as_tensor(loss)

    def on_train_batch_end(self, outputs: Any, *_: Any) -> None:
        self.planted.log(float(outputs["loss"]))

    def validation_step(self, batch: list[torch.Tensor], _: int) -> None:
        (tokens,) = batch
        self.log("held out", self.net(tokens[:, :-1], tokens[:, 1:]), sync_dist=True)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=self.steps + 1)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": "step"},
        }


class Text(lightning.LightningDataModule):  # type: ignore[misc]  # mypy does not read it
    def __init__(self, planted: Planted, sequences: int) -> None:
        super().__init__()
        self.planted, self.sequences = planted, sequences

    def collate(self, samples: list[Any]) -> Any:
        self.planted.here("collate")
        return default_collate(samples)

    def train_dataloader(self) -> Any:
        rows = make_tokens(self.sequences * (LENGTH + 1)).view(-1, LENGTH + 1)
        return DataLoader(TensorDataset(rows), BATCH, shuffle=True, collate_fn=self.collate)

    def val_dataloader(self) -> Any:
        rows = make_tokens(60 * (LENGTH + 1), seed=9).view(-1, LENGTH + 1)
        return DataLoader(TensorDataset(rows), BATCH)


def train(args: argparse.Namespace, folder: str) -> None:
    rank, world = int(os.environ.get("LOCAL_RANK", "0")), 2
    planted = Planted(args, rank)
    lightning.seed_everything(0)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=world,
        strategy="ddp",
        max_epochs=2,
        gradient_clip_val=1.0,
        log_every_n_steps=10,
        callbacks=[LearningRateMonitor(), ModelCheckpoint(folder)],
        logger=CSVLogger(folder),
        enable_progress_bar=False,
    )
    per_epoch = args.steps // 2
    trainer.fit(Language(planted, args.steps), Text(planted, per_epoch * BATCH * world))
    planted.finish()


if __name__ == "__main__":
    options = parser(steps=40, place="collate").parse_args()
    with tempfile.TemporaryDirectory() as folder:
        train(options, folder)
