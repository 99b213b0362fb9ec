"""Starts plain `python script.py` processes with RANK and WORLD_SIZE, as a home-made launcher.

python env_ranks.py --ranks 2 plain_ddp.py --steps 40
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

from fork_ddp import free_port


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--ranks", type=int, default=2)
    options.add_argument("script")
    args, rest = options.parse_known_args()
    script = str(Path(__file__).parent / args.script)
    meeting = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(free_port())}
    ranks = []
    for rank in range(args.ranks):
        own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(args.ranks)}
        command = [sys.executable, script, *rest]
        ranks.append(subprocess.Popen(command, env={**os.environ, **meeting, **own}))
    sys.exit(max(abs(each.wait()) for each in ranks))


if __name__ == "__main__":
    main()
