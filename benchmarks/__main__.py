"""`python -m benchmarks`: the quick ones, one after the other. Nothing else should run beside them.

The fault matrix (about ten minutes) and the thousand kills are started by name.
"""

from __future__ import annotations

import subprocess
import sys

QUICK = ("blackbox_cost", "probe_cost", "doctor_cost", "run_cost", "top_cost", "attribution_sim")


def main() -> None:
    for name in QUICK:
        print(f"\n# python -m benchmarks.{name}", flush=True)
        subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], check=True)


if __name__ == "__main__":
    main()
