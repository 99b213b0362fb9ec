"""Ray Train: a function for each worker, which prepares its model and reports metrics. It starts
a cluster of its own on this machine; `RAY_…` variables say that it listens here alone."""

import argparse
import tempfile
from typing import Any

import ray
import torch
from _gpt import LENGTH, Gpt, make_tokens
from _planted import Planted, parser
from ray import train
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_data_loader, prepare_model
from torch.utils.data import DataLoader, TensorDataset

BATCH, WORKERS = 12, 2


def learn(config: dict[str, Any]) -> None:
    args = config["args"]
    context = train.get_context()
    torch.set_num_threads(1)
    planted = Planted(args, context.get_world_rank())
    torch.manual_seed(0)
    count = args.steps * BATCH * context.get_world_size()
    rows = make_tokens(count * (LENGTH + 1)).view(-1, LENGTH + 1)
    model = prepare_model(Gpt(planted))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for (tokens,) in prepare_data_loader(DataLoader(TensorDataset(rows), BATCH, shuffle=True)):
        planted.turn()
        loss = model(tokens[:, :-1], tokens[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        planted.log(loss.item())
        if planted.turns % 20 == 0:
            train.report({"loss": loss.item()})
    planted.finish()


def main(args: argparse.Namespace, folder: str) -> None:
    ray.init(num_cpus=WORKERS, include_dashboard=False, _node_ip_address="127.0.0.1")
    trainer = TorchTrainer(
        learn,
        train_loop_config={"args": args},
        scaling_config=ScalingConfig(num_workers=WORKERS),
        run_config=RunConfig(storage_path=folder),
    )
    trainer.fit()


if __name__ == "__main__":
    options = parser(steps=40, place="forward").parse_args()
    with tempfile.TemporaryDirectory() as folder:
        main(options, folder)
