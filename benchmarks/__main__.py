"""`python -m benchmarks`: runs the quick benchmarks in turn. Nothing else should run meanwhile.

The blame matrix (about an hour) and the thousand kills are started by name.
"""

from __future__ import annotations

import argparse
import subprocess
import sys

QUICK: tuple[tuple[str, ...], ...] = (
    ("blackbox_cost",),
    ("probe_cost",),
    ("doctor_cost",),
    ("run_cost",),
    ("top_cost",),
    ("detection", "--quick"),
)


def main() -> None:
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    for name, *options in QUICK:
        command = ["-m", f"benchmarks.{name}", *options]
        print(f"\n# python {' '.join(command)}", flush=True)
        subprocess.run([sys.executable, *command], check=True)


if __name__ == "__main__":
    main()
