"""Starts its own ranks with torch.multiprocessing.spawn; no rank is in the environment."""

import argparse
import tempfile
from pathlib import Path

import torch.distributed as dist
from _slow import parser
from plain_ddp import add_options, train
from torch.multiprocessing.spawn import spawn


def rank_main(rank: int, args: argparse.Namespace, meeting: str) -> None:
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=args.ranks)
    train(args)
    dist.destroy_process_group()


def main() -> None:
    options = add_options(parser())
    options.add_argument("--ranks", type=int, default=2)
    args = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        meeting = (Path(folder) / "meeting").as_uri()
        spawn(rank_main, args=(args, meeting), nprocs=args.ranks)


if __name__ == "__main__":
    main()
