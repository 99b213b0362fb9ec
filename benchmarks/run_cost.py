"""What a whole run costs more under the doctor: CPU seconds and wall time, in pairs.

    python -m benchmarks.run_cost [--pairs 5] [--ranks 2] [--steps 200]

The same torchrun job with and without `mgpu-doctor run`, in turn. The difference in CPU seconds is
that of the whole tree: ranks, launcher and the doctor. `benchmarks.doctor_cost` measures the doctor
alone.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Sequence

from benchmarks.support import DOCTOR, JOBS, TORCHRUN, Run, machine, spread, timed


def pair(command: Sequence[str]) -> tuple[Run, Run]:
    """The command bare, then observed."""
    with tempfile.TemporaryDirectory(prefix="mgpu-doctor-bench-") as folder:
        bare = timed(command)
        observed = timed([*DOCTOR, "run", "--dir", f"{folder}/run", "--", *command])
    if bare.exit_code or observed.exit_code:
        raise SystemExit(f"the job failed: {bare.exit_code} bare, {observed.exit_code} observed")
    return bare, observed


def compare(name: str, command: Sequence[str], pairs: int) -> None:
    runs = [pair(command) for _ in range(pairs)]
    for measure in ("cpu", "wall"):
        bare = [getattr(run, measure) for run, _ in runs]
        added = [
            getattr(observed, measure) - getattr(bare_run, measure) for bare_run, observed in runs
        ]
        print(
            f"{name:9} {measure:4}  bare {spread(bare, 's'):28}  "
            f"observed adds {spread(added, 's'):28}"
            f"  ({100 * statistics.median(added) / statistics.median(bare):+.1f} %)",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=200)
    args = parser.parse_args()
    print(machine())
    script = str(JOBS / "plain_ddp.py")
    job = [*TORCHRUN, str(args.ranks), script, "--steps", str(args.steps)]
    compare("training", job, args.pairs)


if __name__ == "__main__":
    main()
