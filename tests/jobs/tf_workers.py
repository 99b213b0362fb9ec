"""Starts a script as the workers of one TensorFlow cluster, as a home-made launcher.

python tf_workers.py --workers 2 tf_loop.py --steps 40
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

from _port import free_port


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--workers", type=int, default=2)
    options.add_argument("script")
    options.add_argument("rest", nargs=argparse.REMAINDER)
    args = options.parse_args()
    script = str(Path(__file__).parent / args.script)
    addresses = [f"localhost:{free_port()}" for _ in range(args.workers)]
    workers = []
    for index in range(args.workers):
        task = {"type": "worker", "index": index}
        config = json.dumps({"cluster": {"worker": addresses}, "task": task})
        command = [sys.executable, script, *args.rest]
        workers.append(subprocess.Popen(command, env={**os.environ, "TF_CONFIG": config}))
    sys.exit(max(abs(worker.wait()) for worker in workers))


if __name__ == "__main__":
    main()
