"""What more ranks, and other strategies, gain on this machine: the table of `train --sweep`.

    python -m benchmarks.scaling [--ranks 1 2 4] [--strategies torch-ddp torch-fsdp] [--steps 100]
                                 [--strong SAMPLES]

Each rank has a batch of its own (weak scaling); with `--strong` all ranks divide one batch.
The first run of a strategy is run once more at the end: how much two equal runs differ by. Nothing
else should run meanwhile.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.support import DOCTOR, STEADY, machine


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--strategies", nargs="+", default=["torch-ddp"])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--model", default="cnn-nano")
    parser.add_argument("--strong", type=int, help="samples of all ranks in a step")
    args = parser.parse_args()
    print(machine(), flush=True)
    job = ["--model", args.model, "--steps", str(args.steps), "--device", "cpu"]
    if args.strong:
        job += ["--global-batch", str(args.strong)]
    with tempfile.TemporaryDirectory(prefix="mgpu-doctor-bench-") as folder:
        for strategy in args.strategies:
            place = Path(folder) / strategy
            counts = ",".join(map(str, args.ranks))
            run("train", strategy, "--sweep", f"ranks={counts}", "--dir", str(place), *job)
            again = ("--ranks", str(args.ranks[0]), "--dir", str(place / "again"))
            run("train", strategy, *again, "--quiet", *job)
            run("compare", str(place))


def run(*arguments: str) -> None:
    """A command of the doctor's, its table shown."""
    settings = [f"{name}={value}" for name, value in STEADY]
    process = subprocess.run(
        ["env", *settings, *DOCTOR, *arguments], stdout=subprocess.PIPE, check=False
    )
    if arguments[0] == "compare":
        sys.stdout.write(process.stdout.decode())
        sys.stdout.flush()


if __name__ == "__main__":
    main()
