"""Starts the processes of a cluster on this machine and ends them together.

    python -m mgpu_trainers.tensorflow.launcher --workers 2 MODULE OPTIONS…

Gives 0 when the training is over; else the exit code of who ended first, 128 more than the signal
where one ended it.
"""

import argparse
import os
import signal
import sys
import tempfile
from collections.abc import Sequence

from mgpu_trainers import cluster
from mgpu_trainers.tensorflow import station
from mgpu_trainers.tensorflow.crew import Crew


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m mgpu_trainers.tensorflow.launcher")
    parser.add_argument("--workers", type=int, required=True, help="how many of them")
    parser.add_argument("--servers", type=int, default=0, help="parameter servers, with a chief")
    parser.add_argument("module", help="what each process runs")
    parser.add_argument("options", nargs=argparse.REMAINDER, help="of the module")
    args = parser.parse_args(argv)
    whole = cluster.local(args.workers, args.servers)
    command = [sys.executable, "-m", args.module, *args.options]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, Crew() as crew:
        common = os.environ | {station.FOLDER: folder}
        for task in whole.tasks():
            crew.start(task, command, common | {cluster.VARIABLE: whole.config(task)})
        code = crew.wait()
    if crew.asked is not None:
        signal.signal(crew.asked, signal.SIG_DFL)
        os.kill(os.getpid(), crew.asked)
    return code


if __name__ == "__main__":
    sys.exit(main())
