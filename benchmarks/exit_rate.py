"""How often a job aborts at its exit, with the doctor and without: does the probe raise the rate?

    python -m benchmarks.exit_rate [--pairs 200] [--cores 0] [-- COMMAND…]

Bare and observed runs of a short FSDP2 job of two ranks (or of COMMAND) alternate. Printed are the
exit codes of both, and the probability of counts at least as uneven if the doctor had no part
(Fisher's exact test, two-sided). `--cores 0` keeps both ranks on one core: there PyTorch 2.13's own
race at exit (issue 190489) shows most often.
"""

from __future__ import annotations

import argparse
import math
import os
import tempfile
from collections import Counter
from collections.abc import Sequence

from benchmarks.support import DOCTOR, JOBS, TORCHRUN, machine, timed

JOB = (*TORCHRUN, "2", str(JOBS / "fsdp2.py"), "--steps", "20")


def fisher(bad: tuple[int, int], pairs: int) -> float:
    """Two-sided probability of Fisher's exact test for `bad` runs among `pairs` runs each."""
    total = sum(bad)

    def weight(first: int) -> int:
        return math.comb(pairs, first) * math.comb(pairs, total - first)

    possible = range(max(0, total - pairs), min(pairs, total) + 1)
    as_uneven = sum(weight(first) for first in possible if weight(first) <= weight(bad[0]))
    return as_uneven / math.comb(2 * pairs, total)


def alternate(command: Sequence[str], pairs: int) -> tuple[Counter[int], Counter[int]]:
    """The exit codes of bare and of observed runs."""
    bare: Counter[int] = Counter()
    observed: Counter[int] = Counter()
    for pair in range(pairs):
        with tempfile.TemporaryDirectory() as folder:
            watched = (*DOCTOR, "run", "-q", "--dir", f"{folder}/r", "--", *command)
            runs = [(bare, command), (observed, watched)]
            for counts, run in runs if pair % 2 else reversed(runs):
                counts[timed(run).exit_code] += 1
        if pair % 20 == 19:
            print(
                f"after {pair + 1} pairs: bare {dict(bare)}, observed {dict(observed)}", flush=True
            )
    return bare, observed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--cores", help="cores to stay on, such as 0 or 0,1")
    parser.add_argument("command", nargs="*", default=JOB)
    arguments = parser.parse_args()
    if arguments.cores:
        os.sched_setaffinity(0, {int(core) for core in arguments.cores.split(",")})
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    print(machine())
    bare, observed = alternate(arguments.command, arguments.pairs)
    bad = (arguments.pairs - bare[0], arguments.pairs - observed[0])
    print(f"failed without the doctor: {bad[0]} of {arguments.pairs}, exit codes {dict(bare)}")
    print(f"failed with the doctor: {bad[1]} of {arguments.pairs}, exit codes {dict(observed)}")
    print(f"probability of such a difference by chance: {fisher(bad, arguments.pairs):.2f}")


if __name__ == "__main__":
    main()
