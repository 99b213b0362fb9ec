"""Starts plain `python script.py` processes with RANK and WORLD_SIZE, as a home-made launcher.

python env_ranks.py --ranks 2 plain_ddp.py --steps 40

With `--world-size 4 --address HOST:PORT --first 2`, they are the ranks 2 and 3 of a job of several
hosts.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

from _port import free_port


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--ranks", type=int, default=2)
    options.add_argument("--world-size", type=int)
    options.add_argument("--address")
    options.add_argument("--first", type=int, default=0)
    options.add_argument("script")
    options.add_argument("rest", nargs=argparse.REMAINDER)
    args = options.parse_args()
    script = str(Path(__file__).parent / args.script)
    host, _, port = (args.address or f"localhost:{free_port()}").partition(":")
    world = str(args.world_size or args.ranks)
    meeting = {"MASTER_ADDR": host, "MASTER_PORT": port, "WORLD_SIZE": world}
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # as torchrun does
    ranks = []
    for rank in range(args.ranks):
        own = {"RANK": str(args.first + rank), "LOCAL_RANK": str(rank)}
        command = [sys.executable, script, *args.rest]
        ranks.append(subprocess.Popen(command, env={**os.environ, **meeting, **own}))
    sys.exit(max(abs(rank.wait()) for rank in ranks))


if __name__ == "__main__":
    main()
