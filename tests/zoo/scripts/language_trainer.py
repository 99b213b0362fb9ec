"""transformers' Trainer on a small GPT-2 without pretrained weights: a collator of one's own, an
evaluation, checkpoints, and callbacks that print."""

import argparse
import os
import tempfile
from typing import Any

import torch
from _gpt import LENGTH, TOKENS, make_tokens
from _planted import Planted, parser
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import PrinterCallback

BATCH = 8
Row = dict[str, torch.Tensor]


class Rows(Dataset[Row]):
    def __init__(self, count: int, seed: int) -> None:
        self.tokens = make_tokens(count * LENGTH, seed).view(count, LENGTH)

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> Row:
        return {"input_ids": self.tokens[index]}


class Prints(TrainerCallback):  # type: ignore[misc]  # mypy does not read it
    def __init__(self, planted: Planted) -> None:
        self.planted = planted

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self.planted.turn()

    def on_log(self, _args: Any, _state: Any, _control: Any, logs: Any, **__: Any) -> None:
        if "loss" in logs:
            self.planted.log(float(logs["loss"]))


def train(args: argparse.Namespace, folder: str) -> None:
    planted = Planted(args, int(os.environ["RANK"]))

    def collate(rows: list[Row]) -> Row:
        planted.here("collate")
        tokens = torch.stack([row["input_ids"] for row in rows])
        return {"input_ids": tokens, "labels": tokens.clone()}

    torch.manual_seed(0)
    config = GPT2Config(vocab_size=TOKENS, n_positions=LENGTH, n_embd=96, n_layer=2, n_head=4)
    settings = TrainingArguments(
        output_dir=folder,
        use_cpu=True,
        per_device_train_batch_size=BATCH,
        max_steps=args.steps,
        logging_steps=10,
        eval_strategy="steps",
        eval_steps=20,
        save_strategy="steps",
        save_steps=20,
        learning_rate=1e-3,
        report_to="none",
        disable_tqdm=True,
    )
    trainer = Trainer(
        model=GPT2LMHeadModel(config),
        args=settings,
        data_collator=collate,
        train_dataset=Rows(2000, seed=0),
        eval_dataset=Rows(64, seed=1),
        callbacks=[Prints(planted)],
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    planted.finish()


if __name__ == "__main__":
    options = parser(steps=40, place="collate").parse_args()
    with tempfile.TemporaryDirectory() as folder:
        train(options, folder)
