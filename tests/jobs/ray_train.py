"""Ray Train's usual script: a function for each worker, `prepare_model`, metrics reported.

It starts a cluster of its own on this machine alone, or joins one; `RAY_…` variables say with which
token.
"""

import argparse
import sys

import ray
import torch
from _rows import loader, options, rows
from _slow import Slow
from no_loader import Net
from ray import train
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_data_loader, prepare_model
from torch import nn


def learn(config: dict[str, argparse.Namespace]) -> None:
    args = config["args"]
    rank, world = train.get_context().get_world_rank(), train.get_context().get_world_size()
    print(f"rank {rank} of {world} starts", file=sys.stderr)
    torch.set_num_threads(1)
    slow = Slow(args, rank)
    net = Net(slow)
    model = prepare_model(net)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    slow.in_optimizer(optimizer)
    for inputs, targets in prepare_data_loader(loader(rows(args, world)[0], slow)):
        slow.turn()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        slow.here("between")
        if slow.turns % 10 == 0:
            train.report({"loss": loss.item(), "turns": slow.turns})
        if slow.turns == args.raises and rank == args.rank:
            raise ValueError("these rows cannot be learned")
    if rank == 0:
        print(f"turns {slow.turns}")


def main() -> None:
    told = options()
    told.add_argument("--ranks", type=int, default=2)
    told.add_argument("--storage", required=True, help="folder of what Ray Train keeps")
    told.add_argument("--raises", type=int, help="turn after which --rank fails")
    told.add_argument("--address", help="of a cluster that runs already")
    args = told.parse_args()
    if args.address:
        ray.init(args.address, _node_ip_address="127.0.0.1")
    else:
        ray.init(num_cpus=args.ranks, include_dashboard=False, _node_ip_address="127.0.0.1")
    trainer = TorchTrainer(
        learn,
        train_loop_config={"args": args},
        scaling_config=ScalingConfig(num_workers=args.ranks),
        run_config=RunConfig(storage_path=args.storage),
    )
    trainer.fit()


if __name__ == "__main__":
    main()
