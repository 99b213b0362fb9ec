"""What `plan` takes, with and without all the fixes: wall seconds of the whole command.

    python -m benchmarks.plan_cost

Its CPU seconds cannot all be measured from here: tracing processes end before they are polled.
"""

from __future__ import annotations

import argparse
import sys

from benchmarks.support import machine, timed

PLANS = (
    "--model gpt2-small --gpu A100-40GB",
    "--model gpt2-small --batch 16 --gpu V100-16GB",
    "--model resnet50 --gpu H100-80GB",
    "--model resnet50 --batch 256 --gpu T4",
)
"""Of each model one that fits, and one that does not, for which all fixes are tried."""


def main() -> None:
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    print(machine())
    for plan in PLANS:
        run = timed((sys.executable, "-m", "mgpu_doctor", "plan", "torch-ddp", *plan.split()))
        print(f"plan torch-ddp {plan:48} {run.wall:5.1f} s", flush=True)


if __name__ == "__main__":
    main()
