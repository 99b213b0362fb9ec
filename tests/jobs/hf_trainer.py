"""Hugging Face's `Trainer` on a small model: evaluation, logging, saving, all its own."""

import os
import sys
import tempfile
from typing import Any

import torch
from _rows import BATCH, options, rows
from _slow import Slow
from no_loader import Net
from torch import nn
from torch.utils.data import Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments


class Regression(nn.Module):
    """Takes what a tokenizer's batch has: names."""

    def __init__(self, slow: Slow) -> None:
        super().__init__()
        self.net = Net(slow)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        scores = self.net(x)
        return {"loss": nn.functional.mse_loss(scores, labels), "logits": scores}


class SlowCallback(TrainerCallback):  # type: ignore[misc]  # mypy does not read it
    def __init__(self, slow: Slow) -> None:
        self.slow = slow

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self.slow.turn()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        for _part in range(self.slow.parts):
            self.slow.here("between")


class Named(Dataset[dict[str, torch.Tensor]]):
    def __init__(self, data: Any) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        x, labels = self.data[index]
        return {"x": x, "labels": labels}


def main() -> None:
    args = options().parse_args()
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    print(f"rank {rank} of {world} starts", file=sys.stderr)
    slow = Slow(args, rank, parts=args.accumulate)
    data, held_out = rows(args, world)

    def collate(samples: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
        slow.here("input")
        return {name: torch.stack([sample[name] for sample in samples]) for name in samples[0]}

    with tempfile.TemporaryDirectory() as folder:
        settings = TrainingArguments(
            output_dir=folder,
            use_cpu=True,
            per_device_train_batch_size=BATCH,
            per_device_eval_batch_size=BATCH,
            gradient_accumulation_steps=args.accumulate,
            max_steps=args.steps,
            logging_steps=10,
            eval_strategy="steps" if args.validate else "no",
            eval_steps=10,
            save_strategy="steps" if args.validate else "no",
            save_steps=20,
            report_to="none",
            disable_tqdm=True,
        )
        trainer = Trainer(
            model=Regression(slow),
            args=settings,
            data_collator=collate,
            train_dataset=Named(data),
            eval_dataset=Named(held_out),
            callbacks=[SlowCallback(slow)],
        )
        trainer.create_optimizer()
        slow.in_optimizer(trainer.optimizer)
        trainer.train()
    if rank == 0:
        print(f"turns {trainer.state.global_step}", flush=True)


if __name__ == "__main__":
    main()
