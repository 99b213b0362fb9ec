"""Starts plain `python script.py` processes with RANK and WORLD_SIZE, as a home-made launcher.

python env_ranks.py --ranks 2 plain_ddp.py --steps 40
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
    options.add_argument("script")
    options.add_argument("rest", nargs=argparse.REMAINDER)
    args = options.parse_args()
    script = str(Path(__file__).parent / args.script)
    meeting = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(free_port())}
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # as torchrun does
    ranks = []
    for rank in range(args.ranks):
        own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(args.ranks)}
        command = [sys.executable, script, *args.rest]
        ranks.append(subprocess.Popen(command, env={**os.environ, **meeting, **own}))
    sys.exit(max(abs(rank.wait()) for rank in ranks))


if __name__ == "__main__":
    main()
