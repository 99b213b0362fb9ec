"""Forks its ranks after torch was imported; each sets RANK in its own environment then."""

import argparse
import os
import sys

import torch.distributed as dist
import torch.multiprocessing as mp
from _port import free_port
from _slow import parser
from plain_ddp import add_options, train


def rank_main(rank: int, args: argparse.Namespace) -> None:
    os.environ["RANK"] = str(rank)
    dist.init_process_group("gloo")
    train(args)
    dist.destroy_process_group()


def main() -> None:
    options = add_options(parser())
    options.add_argument("--ranks", type=int, default=2)
    args = options.parse_args()
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=str(free_port()))
    os.environ["WORLD_SIZE"] = str(args.ranks)
    fork = mp.get_context("fork")
    ranks = [fork.Process(target=rank_main, args=(rank, args)) for rank in range(args.ranks)]
    for each in ranks:
        each.start()
    for each in ranks:
        each.join()
    sys.exit(max(abs(rank.exitcode or 0) for rank in ranks))


if __name__ == "__main__":
    main()
