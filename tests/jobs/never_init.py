"""One rank is busy and never joins the process group; the others time out after --patience."""

import os
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from _slow import parser


def main() -> None:
    options = parser()
    options.add_argument("--patience", type=float, default=5.0, help="seconds")
    args = options.parse_args()
    rank = int(os.environ["RANK"])
    print(f"rank {rank} starts", file=sys.stderr)
    while rank == args.rank:
        time.sleep(0.1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=args.patience))
    dist.all_reduce(torch.ones(1))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
